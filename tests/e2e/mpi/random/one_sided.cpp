// SPDX-License-Identifier: Apache-2.0
#include "program.h"

namespace {

// Windows on the whole world only: Open MPI 4.1.4 gives windows that disjoint communicators make at the same time one name
// in shared memory, and fails.
bool whole_world(const Group& g) {
  return group_of(MPI_COMM_WORLD).size == g.size;
}

// A window of `entries` longs at each rank, freed with it.
struct Window {
  long* base = nullptr;
  MPI_Win win = MPI_WIN_NULL;
  Window(const Group& g, int entries) {
    MPI_Win_allocate(static_cast<MPI_Aint>(sizeof(long)) * entries, sizeof(long), MPI_INFO_NULL, g.comm, &base, &win);
    for (int i = 0; i < entries; ++i) base[i] = 0;
    MPI_Barrier(g.comm);
  }
  ~Window() { MPI_Win_free(&win); }
};

void fence(Program& p, const Group& g) {
  if (!whole_world(g)) return;
  Window w(g, g.size + 1);
  MPI_Win_fence(0, w.win);
  const long mine = p.value(g.rank, 0);
  for (int rank = 0; rank < g.size; ++rank) {
    MPI_Put(&mine, 1, MPI_LONG, rank, g.rank, 1, MPI_LONG, w.win);
    MPI_Accumulate(&mine, 1, MPI_LONG, rank, g.size, 1, MPI_LONG, MPI_SUM, w.win);
  }
  MPI_Win_fence(0, w.win);
  long got = -1, sum = 0;
  MPI_Get(&got, 1, MPI_LONG, (g.rank + 1) % g.size, g.rank, 1, MPI_LONG, w.win);
  MPI_Win_fence(0, w.win);
  p.expect(got, mine);
  for (int rank = 0; rank < g.size; ++rank) {
    p.expect(w.base[rank], p.value(rank, 0));
    sum += p.value(rank, 0);
  }
  p.expect(w.base[g.size], sum);
}

// Rank 0 counts for all while it waits in the barrier.
void lock(Program& p, const Group& g) {
  if (!whole_world(g)) return;
  const int rounds = 1 + p.draws.below(20);
  const bool exclusive = p.draws.chance(50);
  Window w(g, 1);
  long sum_of_tickets = 0;
  for (int i = 0; i < rounds && g.rank != 0; ++i) {
    long one = 1, ticket = -1;
    MPI_Win_lock(exclusive ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, 0, 0, w.win);
    MPI_Fetch_and_op(&one, &ticket, MPI_LONG, 0, 0, MPI_SUM, w.win);
    MPI_Win_unlock(0, w.win);
    sum_of_tickets += ticket;
  }
  MPI_Barrier(g.comm);
  long all = 0;
  MPI_Reduce(&sum_of_tickets, &all, 1, MPI_LONG, MPI_SUM, 0, g.comm);
  if (g.rank != 0) return;
  const long total = static_cast<long>(rounds) * (g.size - 1);
  MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w.win);
  p.expect(w.base[0], total);
  MPI_Win_unlock(0, w.win);
  p.expect(all, total * (total - 1) / 2);
}

void lock_all(Program& p, const Group& g) {
  if (!whole_world(g)) return;
  Window w(g, g.size);
  MPI_Win_lock_all(0, w.win);
  const long mine = p.value(g.rank, 1);
  for (int rank = 0; rank < g.size; ++rank) {
    MPI_Put(&mine, 1, MPI_LONG, rank, g.rank, 1, MPI_LONG, w.win);
    MPI_Win_flush(rank, w.win);
  }
  MPI_Win_flush_all(w.win);
  MPI_Barrier(g.comm);
  MPI_Win_sync(w.win);
  for (int rank = 0; rank < g.size; ++rank) p.expect(w.base[rank], p.value(rank, 1));
  MPI_Win_unlock_all(w.win);
}

// Post, start, complete, wait: each puts to the next.
void active_target(Program& p, const Group& g) {
  if (!whole_world(g)) return;
  Window w(g, 1);
  MPI_Group all, source, target;
  MPI_Comm_group(g.comm, &all);
  const int before = (g.rank + g.size - 1) % g.size, after = (g.rank + 1) % g.size;
  MPI_Group_incl(all, 1, &before, &source);
  MPI_Group_incl(all, 1, &after, &target);
  const long mine = p.value(g.rank, 2);
  MPI_Win_post(source, 0, w.win);
  MPI_Win_start(target, 0, w.win);
  MPI_Put(&mine, 1, MPI_LONG, after, 0, 1, MPI_LONG, w.win);
  MPI_Win_complete(w.win);
  MPI_Win_wait(w.win);
  p.expect(w.base[0], p.value(before, 2));
  MPI_Group_free(&all);
  MPI_Group_free(&source);
  MPI_Group_free(&target);
}

}  // namespace

void add_one_sided(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {fence, lock, lock_all, active_target});
}
