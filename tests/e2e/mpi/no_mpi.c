// SPDX-License-Identifier: Apache-2.0
// A program without MPI, for a static executable that a launcher starts.
#include <stdio.h>

int main(void) {
  printf("rank ?: nothing to do with MPI\n");
  return 0;
}
