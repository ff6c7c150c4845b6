// SPDX-License-Identifier: Apache-2.0
// MPI_THREAD_MULTIPLE: threads of each rank in MPI at once, each on a communicator of its own.
#include <pthread.h>
#include <stdlib.h>

#include "results.h"

enum { kThreads = 3, kRounds = 60 };
static MPI_Comm g_comms[kThreads];
static long g_sums[kThreads];

static void* work(void* argument) {
  const int me = (int)(intptr_t)argument;
  int rank, size;
  MPI_Comm_rank(g_comms[me], &rank);
  MPI_Comm_size(g_comms[me], &size);
  long value = rank + me, sum = 0;
  for (int i = 0; i < kRounds; ++i) {
    if (i % 20 == me && rank == me % size) usleep(2000);
    MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, g_comms[me]);
    long other = 0;
    MPI_Sendrecv(&sum, 1, MPI_LONG, (rank + 1) % size, me, &other, 1, MPI_LONG, (rank + size - 1) % size, me,
                 g_comms[me], MPI_STATUS_IGNORE);
    value = (sum + other + i) % 1000003;
  }
  MPI_Barrier(g_comms[me]);
  g_sums[me] = sum;
  return NULL;
}

int main(int count, char** words) {
  int level, rank;
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (level != MPI_THREAD_MULTIPLE) {
    note(" no threads");
  } else {
    pthread_t threads[kThreads];
    for (int i = 0; i < kThreads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &g_comms[i]);
    for (intptr_t i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, (void*)i);
    for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < kThreads; ++i) {
      note(" %ld", g_sums[i]);
      MPI_Comm_free(&g_comms[i]);
    }
  }
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
