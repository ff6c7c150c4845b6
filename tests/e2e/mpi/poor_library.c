// SPDX-License-Identifier: Apache-2.0
// An MPI library without the profiling interface: no PMPI_ names, and hardly any others.
int MPI_Init(int* count, char*** words) {
  return (void)count, (void)words, 0;
}
int MPI_Comm_rank(int comm, int* rank) {
  return *rank = 40 + comm, 0;
}
int MPI_Finalize(void) {
  return 0;
}
