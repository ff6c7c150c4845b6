// SPDX-License-Identifier: Apache-2.0
// A thousand calls in the form with large counts, which a program asks for by a weak reference: the adapter has it for
// every library, and a library from before MPI 4 does not.
#include <mpi.h>
#include <stdio.h>

extern int MPI_Allreduce_c(const void*, void*, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm) __attribute__((weak));

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int right = 0;
  for (int i = 0; MPI_Allreduce_c != 0 && i < 1000; ++i) {
    int one = 1, all = 0;
    if (MPI_Allreduce_c(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && all == size) ++right;
  }
  if (rank == 0) printf("%d right\n", right);
  MPI_Finalize();
  return 0;
}
