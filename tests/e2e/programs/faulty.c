// SPDX-License-Identifier: Apache-2.0
// Something to build with sanitizers, other C libraries and for other word sizes. The first argument says what it does:
// fine (the default), overflow, leak, race, undefined, uninitialised, thread, fork. Ends with 7, or as a sanitizer ends it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int shared;

static void* count(void* turns) {
  for (int i = 0; i < *(int*)turns; ++i) ++shared;
  return NULL;
}

static void in_threads(int number) {
  pthread_t threads[8];
  int turns = 1000;
  for (int i = 0; i < number; ++i) {
    if (pthread_create(&threads[i], NULL, count, &turns) != 0) abort();
    if (number == 1) pthread_join(threads[i], NULL);
  }
  if (number > 1)
    for (int i = 0; i < number; ++i) pthread_join(threads[i], NULL);
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "fine";
  char* volatile text = malloc(16);
  volatile int most = 0x7fffffff;
  memset(text, argc, 16);
  if (strcmp(what, "overflow") == 0) text[16 + argc] = 1;
  if (strcmp(what, "undefined") == 0) most += argc;
  if (strcmp(what, "race") == 0) in_threads(2);
  if (strcmp(what, "thread") == 0) in_threads(1);
  if (strcmp(what, "uninitialised") == 0) {
    int* volatile fresh = malloc(sizeof(int));
    if (*fresh == 1) puts("one");
    free(fresh);
  }
  if (strcmp(what, "fork") == 0) {
    const pid_t child = fork();
    if (child == 0) _exit(3);
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: %d\n", WEXITSTATUS(status));
  }
  if (strcmp(what, "leak") != 0) free(text);
  text = NULL;
  printf("%s %s\n", what, getenv("HOME") != NULL ? "at home" : "nowhere");
  fflush(stdout);
  return 7;
}
