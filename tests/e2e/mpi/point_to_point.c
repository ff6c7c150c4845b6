// SPDX-License-Identifier: Apache-2.0
// Sends, receives, probes and waits of every kind between rank 0 and the others, small and large, also wrong ones.
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
    MPI_Probe(peer, 3, MPI_COMM_WORLD, &status), received("probed", &status);
    MPI_Recv(g_buffer, kLarge, MPI_LONG, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Message message;
    MPI_Mprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
    MPI_Mrecv(g_buffer, kLarge, MPI_LONG, &message, &status), received("mrecv", &status);
    int here = 0;
    while (!here) MPI_Iprobe(peer, 5, MPI_COMM_WORLD, &here, &status);
    MPI_Recv(g_buffer, kLarge, MPI_LONG, peer, 5, MPI_COMM_WORLD, &status), received("iprobed", &status);
    MPI_Recv(g_buffer, kLarge, MPI_LONG, peer, 6, MPI_COMM_WORLD, &status), received("buffered", &status);
    // Too long for its place: an error, not an end, and the same one.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int kind = MPI_SUCCESS;
    const int error = MPI_Recv(g_buffer, 2, MPI_LONG, peer, 7, MPI_COMM_WORLD, &status);
    MPI_Error_class(error, &kind);
    note(" truncated:%d", kind == MPI_ERR_TRUNCATE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    fill(77);
    MPI_Sendrecv_replace(g_buffer, 100, MPI_LONG, peer, 8, peer, 8, MPI_COMM_WORLD, &status);
    received("replaced", &status);
    MPI_Request requests[4];
    MPI_Status statuses[4];
    for (int i = 0; i < 4; ++i) {
      MPI_Irecv(g_buffer + 1000L * i, 1000, MPI_LONG, peer, 10 + i, MPI_COMM_WORLD, &requests[i]);
    }
    int which, done, indices[4];
    MPI_Waitany(4, requests, &which, &status);
    note(" any:%d", status.MPI_TAG - 10 == which);
    MPI_Waitsome(4, requests, &done, indices, statuses);
    note(" some:%d", done >= 1);
    MPI_Waitall(4, requests, statuses);
    note_bytes("four", g_buffer, 4000 * sizeof(long));
    MPI_Wait(&requests[0], &status);  // null by now
    note(" null:%d", status.MPI_SOURCE == MPI_ANY_SOURCE);
  }
  long sum = 0;
  for (int i = 1; i < g_size; ++i) {
    MPI_Recv(g_buffer, kLarge, MPI_LONG, MPI_ANY_SOURCE, 20, MPI_COMM_WORLD, &status);
    sum += g_buffer[0] * status.MPI_SOURCE;
  }
  note(" any_source=%ld", sum);
  MPI_Recv(g_buffer, 1, MPI_LONG, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &status), received("nobody", &status);
}

static void ask(void) {
  MPI_Status status;
  usleep(3000);
  fill(g_rank), MPI_Send(g_buffer, 10, MPI_LONG, 0, 1, MPI_COMM_WORLD);
  usleep(3000);
  fill(g_rank + 1), MPI_Ssend(g_buffer, kLarge, MPI_LONG, 0, 2, MPI_COMM_WORLD);
  usleep(1000);
  fill(g_rank + 2), MPI_Send(g_buffer, 30, MPI_LONG, 0, 3, MPI_COMM_WORLD);
  usleep(3000);
  fill(g_rank + 3), MPI_Send(g_buffer, kLarge, MPI_LONG, 0, 4, MPI_COMM_WORLD);
  fill(g_rank + 4), MPI_Send(g_buffer, 50, MPI_LONG, 0, 5, MPI_COMM_WORLD);
  const int room = 4096 + MPI_BSEND_OVERHEAD;
  void* store = malloc(room);
  int size;
  MPI_Buffer_attach(store, room);
  fill(g_rank + 5), MPI_Bsend(g_buffer, 60, MPI_LONG, 0, 6, MPI_COMM_WORLD);
  MPI_Buffer_detach(&store, &size);
  free(store);
  MPI_Send(g_buffer, 70, MPI_LONG, 0, 7, MPI_COMM_WORLD);
  MPI_Sendrecv_replace(g_buffer, 100, MPI_LONG, 0, 8, 0, 8, MPI_COMM_WORLD, &status), received("replaced", &status);
  MPI_Request requests[4];
  for (int i = 0; i < 4; ++i) {
    MPI_Send_init(g_buffer + 1000L * i, 1000, MPI_LONG, 0, 10 + i, MPI_COMM_WORLD, &requests[i]);
  }
  usleep(2000);
  MPI_Startall(4, requests);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < 4; ++i) MPI_Request_free(&requests[i]);
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
  // To itself.
  long out = 5 + g_rank, in = 0;
  MPI_Sendrecv(&out, 1, MPI_LONG, g_rank, 9, &in, 1, MPI_LONG, g_rank, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  note(" self=%ld", in);
  // Around, many and small.
  const int next = (g_rank + 1) % g_size, before = (g_rank + g_size - 1) % g_size;
  for (int i = 0; i < 500; ++i) {
    out = in + i;
    MPI_Sendrecv(&out, 1, MPI_LONG, next, 30, &in, 1, MPI_LONG, before, 30, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  note(" around=%ld", in);
  print_notes(g_rank);
  MPI_Finalize();
  return 0;
}
