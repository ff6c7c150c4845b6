// SPDX-License-Identifier: Apache-2.0
// MPI without MPI_Init: a session, a communicator made of its processes; twice.
#include <stdlib.h>

#include "results.h"

int main(void) {
  int rank = 0;
#if MPI_VERSION >= 4
  for (int round = 0; round < 2; ++round) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "powerccl-test", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    int size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    long value = rank + 1, sum = 0;
    for (int i = 0; i < 10; ++i) {
      if (rank == i % size) usleep(1500);
      MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, comm);
      value = (sum + rank) % 1000;
    }
    note(" size=%d sum=%ld", size, sum);
    MPI_Group_free(&group);
    MPI_Comm_free(&comm);
    MPI_Session_finalize(&session);
  }
#endif
  print_notes(rank);
  return 0;
}
