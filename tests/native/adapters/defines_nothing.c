// SPDX-License-Identifier: Apache-2.0
// A program that defines nothing which others could refer to, as most are, with the libraries for jobs preloaded. It
// asks whether there is an NCCL and an MPI, as programs do that work without: there is neither.
extern int ncclGetVersion(int*) __attribute__((weak));
extern int MPI_Init(int*, char***) __attribute__((weak));

int main(void) {
  return ncclGetVersion != 0 || MPI_Init != 0;
}
