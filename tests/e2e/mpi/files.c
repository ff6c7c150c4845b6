// SPDX-License-Identifier: Apache-2.0
// All ranks write one file and read it: files PATH.
#include <stdlib.h>

#include "results.h"

int main(int count, char** words) {
  enum { kEach = 1000 };
  int rank, size;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_File file;
  int error =
      MPI_File_open(MPI_COMM_WORLD, count > 1 ? words[1] : "", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
  if (error != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 9);
  long values[kEach], next[kEach];
  for (int i = 0; i < kEach; ++i) values[i] = 1000000L * rank + i;
  if (rank == 0) usleep(2000);
  MPI_Status status;
  MPI_File_set_size(file, (MPI_Offset)sizeof(values) * size);
  MPI_File_write_at_all(file, (MPI_Offset)sizeof(values) * rank, values, kEach, MPI_LONG, &status);
  int written = 0;
  MPI_Get_count(&status, MPI_LONG, &written);
  MPI_File_sync(file);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_sync(file);
  MPI_File_set_view(file, (MPI_Offset)sizeof(values) * ((rank + 1) % size), MPI_LONG, MPI_LONG, "native",
                    MPI_INFO_NULL);
  MPI_File_read_all(file, next, kEach, MPI_LONG, &status);
  note(" written=%d", written);
  note_bytes("next", next, sizeof(next));
  MPI_File_close(&file);
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
