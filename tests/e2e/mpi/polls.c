// SPDX-License-Identifier: Apache-2.0
// Rank 0 polls for a message itself; what a poll costs, in ns, goes to stderr.
#include <stdio.h>

#include "results.h"

int main(int count, char** words) {
  int rank, value = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) {
    usleep(200000);
    value = 5;
    MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  } else if (rank == 0) {
    MPI_Request request;
    int done = 0;
    long polls = 0;
    MPI_Irecv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
    const double start = MPI_Wtime();
    for (; !done; ++polls) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    fprintf(stderr, "ns_each %.1f\n", (MPI_Wtime() - start) * 1e9 / (double)polls);
  }
  note(" value=%d", value);
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
