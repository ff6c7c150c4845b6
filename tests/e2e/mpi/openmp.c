// SPDX-License-Identifier: Apache-2.0
// OpenMP beside MPI: while the first thread waits in MPI for a late rank, the others wait for it by sched_yield(),
// which is theirs. Says how often they got to yield.
#include <omp.h>
#include <sched.h>

#include "results.h"

int main(int count, char** words) {
  int level, rank, size;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  long sum = 0, yields = 0;
  int done = 0;
#pragma omp parallel num_threads(2) reduction(+ : yields)
  {
    if (omp_get_thread_num() == 0) {
      if (rank == 0) usleep(100000);
      long value = rank + 1;
      MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
#pragma omp atomic write seq_cst
      done = 1;
    } else {
      for (int over = 0; !over; ++yields) {
        sched_yield();
#pragma omp atomic read seq_cst
        over = done;
      }
    }
  }
  note(" size=%d sum=%ld", size, sum);
  fprintf(stderr, "yields %ld\n", yields);
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
