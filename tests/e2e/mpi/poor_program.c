// SPDX-License-Identifier: Apache-2.0
// A program for poor_library.c.
#include <stdio.h>

int MPI_Init(int* count, char*** words);
int MPI_Comm_rank(int comm, int* rank);
int MPI_Finalize(void);

int main(int count, char** words) {
  int rank = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(2, &rank);
  printf("rank %d: poor\n", rank);
  MPI_Finalize();
  return 4;
}
