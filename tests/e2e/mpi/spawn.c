// SPDX-License-Identifier: Apache-2.0
// Parents start children of the same program; all count together, and part.
#include <stdlib.h>

#include "results.h"

int main(int count, char** words) {
  int rank, size, children = 2;
  MPI_Comm parent, others, all;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_get_parent(&parent);
  const int is_child = parent != MPI_COMM_NULL;
  if (is_child) {
    others = parent;
  } else {
    MPI_Comm_spawn(words[0], MPI_ARGV_NULL, children, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others, MPI_ERRCODES_IGNORE);
  }
  long value = (is_child ? 100 : 1) * (rank + 1), sum = 0, told = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, others);
  if (rank == 0) MPI_Sendrecv(&value, 1, MPI_LONG, 0, 3, &told, 1, MPI_LONG, 0, 3, others, MPI_STATUS_IGNORE);
  MPI_Intercomm_merge(others, is_child, &all);
  for (int i = 0; i < 20; ++i) {
    int together;
    MPI_Comm_rank(all, &together);
    if (i % 5 == 0 && together == i / 5) usleep(2000);
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_LONG, MPI_MAX, all);
    MPI_Bcast(&told, 1, MPI_LONG, 0, all);
    value += 1;
  }
  note(" sum=%ld told=%ld value=%ld", sum, told, value);
  MPI_Comm_free(&all);
  MPI_Comm_disconnect(&others);
  print_notes((is_child ? 10 : 0) + rank);
  MPI_Finalize();
  return 0;
}
