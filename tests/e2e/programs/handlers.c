/* SPDX-License-Identifier: Apache-2.0
   A library to preload, as profilers are: its constructor installs a handler for each signal that HANDLERS names by
   number. The handler writes a line to stderr. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void handled(int number, siginfo_t* about, void* context) {
  static const char kLine[] = "handled by a library\n";
  (void)number, (void)about, (void)context;
  if (write(2, kLine, sizeof kLine - 1) < 0) _exit(40);
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handled;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  const char* at = getenv("HANDLERS");
  char* next = NULL;
  for (; at != NULL && *at != '\0'; at = next) {
    const long number = strtol(at, &next, 10);
    if (next == at) return;
    sigaction((int)number, &action, NULL);
  }
}
