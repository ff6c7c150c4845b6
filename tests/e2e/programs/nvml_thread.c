// SPDX-License-Identifier: Apache-2.0
// Linked with an NVML: the same library, which starts a thread when it is loaded, as libraries written in Go do.
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static void* rest(void* unused) {
  for (;;) pause();
  return unused;
}

__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, rest, NULL);
}
