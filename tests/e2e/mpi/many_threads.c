// SPDX-License-Identifier: Apache-2.0
// More threads than anybody expects, each of which makes blocking calls to itself: many_threads AT_ONCE CALLS TURNS.
// AT_ONCE threads live at a time, TURNS times over. With a fourth argument no memory can be had once MPI is up.
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "results.h"

static int g_calls;
static pthread_barrier_t g_all;

static void* work(void* argument) {
  // All of them are there before any of them ends.
  pthread_barrier_wait(&g_all);
  const int tag = (int)(intptr_t)argument;
  for (int i = 0; i < g_calls; ++i) {
    int out = i, in = 0;
    MPI_Sendrecv(&out, 1, MPI_INT, 0, tag, &in, 1, MPI_INT, 0, tag, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    if (in != i) return (void*)1;
  }
  pthread_barrier_wait(&g_all);
  return NULL;
}

int main(int count, char** words) {
  if (count < 4) return 2;
  const int at_once = atoi(words[1]), turns = atoi(words[3]);
  int level, rank, wrong = 0;
  g_calls = atoi(words[2]);
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (level != MPI_THREAD_MULTIPLE) return 5;
  pthread_barrier_init(&g_all, NULL, (unsigned)at_once + 1);
  pthread_t* threads = malloc(sizeof(pthread_t) * (size_t)at_once);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 256 << 10);
  for (int turn = 0; turn < turns; ++turn) {
    for (intptr_t i = 0; i < at_once; ++i) {
      if (pthread_create(&threads[i], &small, work, (void*)i) != 0) return 6;
    }
    if (count > 4 && turn == 0) {
      // What is mapped until now stays; a little is left for the library.
      long pages = 0;
      FILE* mapped = fopen("/proc/self/statm", "r");
      if (mapped == NULL || fscanf(mapped, "%ld", &pages) != 1) return 7;
      fclose(mapped);
      struct rlimit limit = {(rlim_t)pages * 4096 + (1 << 20), (rlim_t)pages * 4096 + (1 << 20)};
      setrlimit(RLIMIT_AS, &limit);
    }
    pthread_barrier_wait(&g_all);
    pthread_barrier_wait(&g_all);
    for (int i = 0; i < at_once; ++i) {
      void* result;
      pthread_join(threads[i], &result);
      wrong += result != NULL;
    }
  }
  note(" %d threads, %d wrong", at_once * turns, wrong);
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
