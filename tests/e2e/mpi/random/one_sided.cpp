// SPDX-License-Identifier: Apache-2.0
#include "program.h"

namespace {

// Windows on the world and its likes only: Open MPI 4.1.4 gives windows that disjoint communicators make at the same
// time one name in shared memory, and fails.
bool like_the_world(const Group& g) {
  int how = MPI_UNEQUAL;
  MPI_Comm_compare(g.comm, MPI_COMM_WORLD, &how);
  return how == MPI_IDENT || how == MPI_CONGRUENT;
}

// A window of `entries` longs at each rank, made in one of several ways and freed with it.
struct Window {
  std::vector<long> own;
  long* base = nullptr;
  MPI_Win win = MPI_WIN_NULL;
  Window(Program& p, const Group& g, int entries) {
    const MPI_Aint bytes = static_cast<MPI_Aint>(sizeof(long)) * entries;
    // MPICH 4.0.2 puts to the wrong rank of small windows that it allocates itself; Open MPI 4.1 has no windows on
    // memory of others without a network.
    const int drawn = p.draws.below(3), how = is_mpich_402() ? 0 : is_open_mpi_41() ? 1 + drawn % 2 : drawn;
    if (how == 0) {
      own.resize(static_cast<size_t>(entries));
      base = own.data();
      MPI_Win_create(base, bytes, sizeof(long), MPI_INFO_NULL, g.comm, &win);
    } else if (how == 1) {
      MPI_Win_allocate(bytes, sizeof(long), MPI_INFO_NULL, g.comm, &base, &win);
    } else {
      MPI_Win_allocate_shared(bytes, sizeof(long), MPI_INFO_NULL, g.comm, &base, &win);
    }
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, g.rank, 0, win);
    for (int i = 0; i < entries; ++i) base[i] = 0;
    MPI_Win_unlock(g.rank, win);
    MPI_Barrier(g.comm);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() { MPI_Win_free(&win); }
};

void fence(Program& p, const Group& g) {
  if (!like_the_world(g)) return;
  Window w(p, g, g.size + 1);
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
  if (!like_the_world(g)) return;
  const int rounds = 1 + p.draws.below(20);
  const bool exclusive = p.draws.chance(50);
  Window w(p, g, 1);
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
  if (!like_the_world(g)) return;
  Window w(p, g, g.size);
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
  if (!like_the_world(g)) return;
  Window w(p, g, 1);
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

// A lock of their own making: who swaps 0 for his number holds it, the others ask again.
void compare_and_swap(Program& p, const Group& g) {
  if (!like_the_world(g)) return;
  Window w(p, g, 2);
  const int home = p.draws.below(1 << 20) % g.size;
  const long nobody = 0, me = g.rank + 1;
  long held = -1, count = 0;
  MPI_Win_lock_all(0, w.win);
  do {
    MPI_Compare_and_swap(&me, &nobody, &held, MPI_LONG, home, 0, w.win);
    MPI_Win_flush(home, w.win);
  } while (held != 0);
  MPI_Get(&count, 1, MPI_LONG, home, 1, 1, MPI_LONG, w.win);
  MPI_Win_flush(home, w.win);
  count += p.value(g.rank, 0);
  MPI_Put(&count, 1, MPI_LONG, home, 1, 1, MPI_LONG, w.win);
  MPI_Win_flush(home, w.win);
  MPI_Compare_and_swap(&nobody, &me, &held, MPI_LONG, home, 0, w.win);
  MPI_Win_flush(home, w.win);
  p.expect(held, me);
  MPI_Win_unlock_all(w.win);
  MPI_Barrier(g.comm);
  if (g.rank != home) return;
  long sum = 0;
  for (int rank = 0; rank < g.size; ++rank) sum += p.value(rank, 0);
  MPI_Win_lock(MPI_LOCK_SHARED, home, 0, w.win);
  p.expect(w.base[1], sum);
  MPI_Win_unlock(home, w.win);
}

// One-sided by request, and what was there before with what is added.
void by_request(Program& p, const Group& g) {
  if (!like_the_world(g)) return;
  Window w(p, g, g.size + 1);
  const int after = (g.rank + 1) % g.size;
  const long mine = p.value(g.rank, 3);
  long before = -1, got = -1;
  MPI_Request requests[2];
  MPI_Win_lock_all(0, w.win);
  MPI_Rput(&mine, 1, MPI_LONG, after, g.rank, 1, MPI_LONG, w.win, &requests[0]);
  MPI_Raccumulate(&mine, 1, MPI_LONG, 0, g.size, 1, MPI_LONG, MPI_SUM, w.win, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  MPI_Win_flush_local(after, w.win);
  MPI_Win_flush_all(w.win);
  MPI_Rget(&got, 1, MPI_LONG, after, g.rank, 1, MPI_LONG, w.win, &requests[0]);
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  p.expect(got, mine);
  MPI_Barrier(g.comm);
  MPI_Get_accumulate(nullptr, 0, MPI_LONG, &before, 1, MPI_LONG, 0, g.size, 1, MPI_LONG, MPI_NO_OP, w.win);
  MPI_Win_flush_local_all(w.win);
  MPI_Win_unlock_all(w.win);
  long sum = 0;
  for (int rank = 0; rank < g.size; ++rank) sum += p.value(rank, 3);
  p.expect(before, sum);
  MPI_Barrier(g.comm);
}

}  // namespace

void add_one_sided(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {fence, lock, lock_all, active_target, compare_and_swap, by_request});
}
