// SPDX-License-Identifier: Apache-2.0
// Every kind of collective call, on every kind of communicator, with one rank that comes late now and then.
#include <stdlib.h>

#include "results.h"

enum { kMany = 5000 };
static int g_world_rank, g_late;

static void come_late(void) {
  if (g_late++ % 4 == g_world_rank % 3) usleep(1500);
}

// Rooted, with uneven counts, in place: `size` and `rank` are the communicator's.
static void on(MPI_Comm comm, const char* name) {
  int size, rank;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  int *counts = calloc(size, sizeof(int)), *places = calloc(size, sizeof(int)), *ones = calloc(size, sizeof(int));
  long *mine = calloc(kMany, sizeof(long)), *all = calloc((size_t)kMany * size, sizeof(long));
  int total = 0;
  for (int i = 0; i < size; ++i) {
    counts[i] = i == 1 ? 0 : 3 * i + 2;  // somebody has nothing to say
    places[i] = total + i;
    ones[i] = 1;
    total += counts[i];
  }
  for (int i = 0; i < kMany; ++i) mine[i] = (long)g_world_rank * 1000003 + i;
  const int last = size - 1;
  note(" [%s %d/%d]", name, rank, size);

  come_late();
  MPI_Barrier(comm);
  long* x = calloc((size_t)kMany * size, sizeof(long));
#define FRESH() memset(x, 0, (size_t)kMany * size * sizeof(long))
#define SHOW(what) (note_bytes(what, x, (size_t)kMany * size * sizeof(long)), FRESH())
  if (rank == last) memcpy(x, mine, kMany * sizeof(long));
  come_late();
  MPI_Bcast(x, kMany, MPI_LONG, last, comm);
  SHOW("bcast");
  MPI_Bcast(x, 0, MPI_LONG, 0, comm);
  come_late();
  MPI_Reduce(mine, x, kMany, MPI_LONG, MPI_SUM, 0, comm);
  SHOW("reduce");
  memcpy(x, mine, 10 * sizeof(long));
  MPI_Reduce(rank == last ? MPI_IN_PLACE : x, x, 10, MPI_LONG, MPI_MAX, last, comm);
  SHOW("reduce_in_place");
  come_late();
  MPI_Allreduce(mine, x, kMany, MPI_LONG, MPI_SUM, comm);
  SHOW("allreduce");
  memcpy(x, mine, 7 * sizeof(long));
  MPI_Allreduce(MPI_IN_PLACE, x, 7, MPI_LONG, MPI_BXOR, comm);
  SHOW("allreduce_in_place");
  MPI_Allgather(mine, 11, MPI_LONG, x, 11, MPI_LONG, comm);
  SHOW("allgather");
  memcpy(x + rank, mine, sizeof(long));
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, 1, MPI_LONG, comm);
  SHOW("allgather_in_place");
  come_late();
  MPI_Allgatherv(mine, counts[rank], MPI_LONG, x, counts, places, MPI_LONG, comm);
  SHOW("allgatherv");
  MPI_Gather(mine, 4, MPI_LONG, x, 4, MPI_LONG, last, comm);
  SHOW("gather");
  if (rank == 0) memcpy(x, mine, 4 * sizeof(long));
  MPI_Gather(rank == 0 ? MPI_IN_PLACE : (void*)mine, 4, MPI_LONG, x, 4, MPI_LONG, 0, comm);
  SHOW("gather_in_place");
  // What only the root reads may be nothing elsewhere.
  MPI_Gatherv(mine, counts[rank], MPI_LONG, rank == 0 ? x : NULL, rank == 0 ? counts : NULL, rank == 0 ? places : NULL,
              MPI_LONG, 0, comm);
  SHOW("gatherv");
  for (int i = 0; i < kMany * size; ++i) all[i] = mine[0] + 7 * i;
  come_late();
  MPI_Scatter(rank == last ? all : NULL, 9, MPI_LONG, x, 9, MPI_LONG, last, comm);
  SHOW("scatter");
  MPI_Scatterv(all, counts, places, MPI_LONG, x, counts[rank], MPI_LONG, 0, comm);
  SHOW("scatterv");
  MPI_Scatter(all, 2, MPI_LONG, rank == 0 ? MPI_IN_PLACE : x, 2, MPI_LONG, 0, comm);
  SHOW("scatter_in_place");
  MPI_Alltoall(all, 6, MPI_LONG, x, 6, MPI_LONG, comm);
  SHOW("alltoall");
  memcpy(x, all, (size_t)6 * size * sizeof(long));
  MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, 6, MPI_LONG, comm);
  SHOW("alltoall_in_place");
  int *sizes = calloc(size, sizeof(int)), *starts = calloc(size, sizeof(int)), *bytes = calloc(size, sizeof(int));
  MPI_Datatype* types = calloc(size, sizeof(MPI_Datatype));
  for (int i = 0; i < size; ++i) {
    sizes[i] = counts[rank] + counts[i];
    starts[i] = 40 * i;
    bytes[i] = (int)sizeof(long) * 40 * i;
    types[i] = MPI_LONG;
  }
  come_late();
  MPI_Alltoallv(all, sizes, starts, MPI_LONG, x, sizes, starts, MPI_LONG, comm);
  SHOW("alltoallv");
  MPI_Alltoallw(all, sizes, bytes, types, x, sizes, bytes, types, comm);
  SHOW("alltoallw");
  MPI_Reduce_scatter(all, x, counts, MPI_LONG, MPI_SUM, comm);
  SHOW("reduce_scatter");
  memcpy(x, all, (size_t)3 * size * sizeof(long));
  MPI_Reduce_scatter_block(MPI_IN_PLACE, x, 3, MPI_LONG, MPI_SUM, comm);
  memset(x + 3, 0, (size_t)3 * size * sizeof(long));  // the rest is the library's to spoil
  SHOW("reduce_scatter_block_in_place");
  come_late();
  MPI_Scan(mine, x, 12, MPI_LONG, MPI_SUM, comm);
  SHOW("scan");
  MPI_Exscan(mine, x, 12, MPI_LONG, MPI_SUM, comm);
  if (rank == 0) FRESH();
  SHOW("exscan");
  // A column of a matrix: type and count differ from what is contiguous.
  MPI_Datatype column;
  MPI_Type_vector(5, 1, 5, MPI_LONG, &column);
  MPI_Type_commit(&column);
  memcpy(x, mine, 25 * sizeof(long));
  come_late();
  MPI_Bcast(x, 1, column, 0, comm);
  SHOW("bcast_vector");
  MPI_Type_free(&column);
  // By request.
  MPI_Request requests[3];
  memcpy(x, mine, 20 * sizeof(long));
  MPI_Ibcast(x, 20, MPI_LONG, last, comm, &requests[0]);
  MPI_Iallreduce(mine, x + 20, 20, MPI_LONG, MPI_SUM, comm, &requests[1]);
  MPI_Ibarrier(comm, &requests[2]);
  come_late();
  MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
  SHOW("by_request");
  free(x), free(all), free(mine), free(counts), free(places), free(ones), free(sizes), free(starts), free(bytes);
  free(types);
}

static void between_halves(void) {
  int size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 2) return;
  const int half = g_world_rank % 2;
  MPI_Comm mine, both, merged;
  MPI_Comm_split(MPI_COMM_WORLD, half, 0, &mine);
  MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, 1 - half, 7, &both);
  int remote, rank;
  MPI_Comm_remote_size(both, &remote);
  MPI_Comm_rank(mine, &rank);
  long value = 100 + g_world_rank, sum = 0, all[64] = {0};
  come_late();
  MPI_Barrier(both);
  MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, both);
  MPI_Allgather(&value, 1, MPI_LONG, all, 1, MPI_LONG, both);
  note(" [inter %d] sum=%ld", remote, sum);
  note_bytes("allgather", all, sizeof(all));
  long shared = half == 0 ? 4711 : 0;
  come_late();
  MPI_Bcast(&shared, 1, MPI_LONG, half == 1 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
  sum = 0;
  MPI_Reduce(&value, &sum, 1, MPI_LONG, MPI_SUM, half == 0 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
  note(" bcast=%ld reduce=%ld", shared, sum);
  MPI_Intercomm_merge(both, half, &merged);
  on(merged, "merged");
  MPI_Comm_free(&merged);
  MPI_Comm_free(&both);
  on(mine, "half");
  MPI_Comm_free(&mine);
}

int main(int count, char** words) {
  int size;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  on(MPI_COMM_WORLD, "world");
  on(MPI_COMM_SELF, "self");
  MPI_Comm copy, part, turned;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  on(copy, "copy");
  MPI_Comm_split(copy, g_world_rank == 0 ? MPI_UNDEFINED : 1, -g_world_rank, &part);
  if (part != MPI_COMM_NULL) on(part, "reversed"), MPI_Comm_free(&part);
  MPI_Comm_free(&copy);
  between_halves();
  int around = 1;
  MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &around, 1, &turned);
  long out[2] = {g_world_rank + 1, g_world_rank + 2}, in[2] = {0, 0};
  come_late();
  MPI_Neighbor_allgather(out, 1, MPI_LONG, in, 1, MPI_LONG, turned);
  note(" [ring] %ld %ld", in[0], in[1]);
  MPI_Neighbor_alltoall(out, 1, MPI_LONG, in, 1, MPI_LONG, turned);
  note(" %ld %ld", in[0], in[1]);
  MPI_Comm_free(&turned);
  for (int i = 0; i < 70; ++i) {  // more communicators than a small table has room for
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Barrier(copy);
    MPI_Comm_free(&copy);
  }
  print_notes(g_world_rank);
  MPI_Finalize();
  return 0;
}
