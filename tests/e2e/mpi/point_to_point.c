// SPDX-License-Identifier: Apache-2.0
// Sends and receives between rank 0 and the others, small and large, also wrong ones. mpi/random has all right ones.
#include <stdlib.h>

#include "results.h"

enum { kLarge = 1 << 18 };  // longs: 2 MiB, beyond every eager limit
static long* g_buffer;
static int g_rank, g_size;

static void fill(int seed) {
  for (int i = 0; i < kLarge; ++i) g_buffer[i] = seed * 31L + i;
}

static void received(const char* name, const MPI_Status* status) {
  int count = -1;
  MPI_Get_count(status, MPI_LONG, &count);
  note(" %s:%d/%d/%d", name, status->MPI_SOURCE, status->MPI_TAG, count);
  note_bytes("data", g_buffer, count > 0 ? count * sizeof(long) : 0);
}

static void serve(void) {
  MPI_Status status;
  for (int peer = 1; peer < g_size; ++peer) {
    MPI_Recv(g_buffer, kLarge, MPI_LONG, peer, 1, MPI_COMM_WORLD, &status), received("recv", &status);
    MPI_Recv(g_buffer, kLarge, MPI_LONG, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &status), received("large", &status);
    // Too long for its place: an error, not an end, and the same one.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int kind = MPI_SUCCESS;
    const int error = MPI_Recv(g_buffer, 2, MPI_LONG, peer, 7, MPI_COMM_WORLD, &status);
    MPI_Error_class(error, &kind);
    note(" truncated:%d", kind == MPI_ERR_TRUNCATE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  }
  long sum = 0;
  for (int i = 1; i < g_size; ++i) {
    MPI_Recv(g_buffer, kLarge, MPI_LONG, MPI_ANY_SOURCE, 20, MPI_COMM_WORLD, &status);
    sum += g_buffer[0] * status.MPI_SOURCE;
  }
  note(" any_source=%ld", sum);
}

static void ask(void) {
  usleep(3000);
  fill(g_rank), MPI_Send(g_buffer, 10, MPI_LONG, 0, 1, MPI_COMM_WORLD);
  usleep(3000);
  fill(g_rank + 1), MPI_Ssend(g_buffer, kLarge, MPI_LONG, 0, 2, MPI_COMM_WORLD);
  MPI_Send(g_buffer, 70, MPI_LONG, 0, 7, MPI_COMM_WORLD);
  g_buffer[0] = 100 + g_rank;
  MPI_Request sent;
  MPI_Isend(g_buffer, 1, MPI_LONG, 0, 20, MPI_COMM_WORLD, &sent);
  int done = 0;
  while (!done) MPI_Test(&sent, &done, MPI_STATUS_IGNORE);
}

int main(int count, char** words) {
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_size);
  g_buffer = calloc(kLarge, sizeof(long));
  if (g_rank == 0)
    serve();
  else
    ask();
  // Around, many and small.
  const int next = (g_rank + 1) % g_size, before = (g_rank + g_size - 1) % g_size;
  long out = 5 + g_rank, in = 0;
  for (int i = 0; i < 500; ++i) {
    out = in + i;
    MPI_Sendrecv(&out, 1, MPI_LONG, next, 30, &in, 1, MPI_LONG, before, 30, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  note(" around=%ld", in);
  print_notes(g_rank);
  MPI_Finalize();
  return 0;
}
