// SPDX-License-Identifier: Apache-2.0
// One-sided: rank 0 counts in the window of rank 1, which waits in a barrier meanwhile and may have to serve it there.
// Rank 0 says last how long each operation took, in microseconds.
#include "results.h"

enum { kTimes = 400 };

int main(int count, char** words) {
  int rank;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  long* counters;
  MPI_Win window;
  MPI_Win_allocate(4 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &window);
  memset(counters, 0, 4 * sizeof(long));
  MPI_Barrier(MPI_COMM_WORLD);
  double each_us = 0;
  if (rank == 0) {
    usleep(20000);  // rank 1 has been waiting for long by then
    const long one = 1;
    long before = -1, sum = 0;
    const double start = MPI_Wtime();
    for (int i = 0; i < kTimes; ++i) {
      MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window);
      MPI_Fetch_and_op(&one, &before, MPI_LONG, 1, 0, MPI_SUM, window);
      MPI_Win_unlock(1, window);
      sum += before;
    }
    each_us = (MPI_Wtime() - start) * 1e6 / kTimes;
    note(" fetched=%ld", sum);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  note(" counted=%ld", rank == 1 ? counters[0] : 0);
  MPI_Win_free(&window);
  print_notes(rank);
  if (rank == 0) fprintf(stderr, "each_us %.2f\n", each_us);
  MPI_Finalize();
  return 0;
}
