// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "program.h"

namespace {

long sum_of_ranks(const Group& g) {
  return static_cast<long>(g.size) * (g.size - 1) / 2;
}

void made_and_freed(Program& p, const Group& g) {
  const int how = p.draws.below(4);
  MPI_Comm made = MPI_COMM_NULL;
  if (how == 0) MPI_Comm_dup(g.comm, &made);
  if (how == 1) MPI_Comm_split(g.comm, g.rank % 2, -g.rank, &made);
  if (how == 2) MPI_Comm_split_type(g.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made);
  if (how == 3) {
    MPI_Group all, half;
    MPI_Comm_group(g.comm, &all);
    int range[1][3] = {{0, g.size - 1, 2}};
    MPI_Group_range_incl(all, 1, range, &half);
    MPI_Comm_create(g.comm, half, &made);
    MPI_Group_free(&all);
    MPI_Group_free(&half);
  }
  if (made == MPI_COMM_NULL) return;
  const Group inner = group_of(made);
  long in = inner.rank, out = -1;
  MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, made);
  p.expect(out, sum_of_ranks(inner));
  if (p.draws.state % 2 == 0) {
    MPI_Comm_free(&made);
  } else {
    MPI_Comm_disconnect(&made);
  }
}

void between_groups(Program& p, const Group& g) {
  if (g.size < 2) return;
  MPI_Comm half, inter, merged;
  const int left = g.size / 2, side = g.rank < left ? 0 : 1;
  MPI_Comm_split(g.comm, side, g.rank, &half);
  MPI_Intercomm_create(half, 0, g.comm, side == 0 ? left : 0, 5, &inter);
  const int others = side == 0 ? g.size - left : left;
  const int other_first = side == 0 ? left : 0;
  long in = p.value(g.rank, 0), out = -1, should_be = 0;
  MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, inter);
  for (int i = 0; i < others; ++i) should_be += p.value(other_first + i, 0);
  p.expect(out, should_be);
  // The first of the left tells all of the right.
  long told = g.rank == 0 ? p.value(0, 9) : -1;
  MPI_Bcast(&told, 1, MPI_LONG, side == 1 ? 0 : g.rank == 0 ? MPI_ROOT : MPI_PROC_NULL, inter);
  if (side == 1) p.expect(told, p.value(0, 9));
  std::vector<long> all(static_cast<size_t>(others), -1);
  MPI_Allgather(&in, 1, MPI_LONG, all.data(), 1, MPI_LONG, inter);
  for (int i = 0; i < others; ++i) p.expect(all[static_cast<size_t>(i)], p.value(other_first + i, 0));
  MPI_Barrier(inter);
  MPI_Intercomm_merge(inter, side, &merged);
  const Group whole = group_of(merged);
  long rank = whole.rank, sum = -1;
  MPI_Allreduce(&rank, &sum, 1, MPI_LONG, MPI_SUM, merged);
  p.expect(sum, sum_of_ranks(whole));
  MPI_Comm_free(&merged);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

void neighbours(Program& p, const Group& g) {
  MPI_Comm ring;
  int size = g.size, periodic = 1;
  MPI_Cart_create(g.comm, 1, &size, &periodic, 0, &ring);
  long in = p.value(g.rank, 0), around[2] = {-1, -1}, letters[2] = {p.value(g.rank, 1), p.value(g.rank, 2)};
  const int before = (g.rank + g.size - 1) % g.size, after = (g.rank + 1) % g.size;
  MPI_Neighbor_allgather(&in, 1, MPI_LONG, around, 1, MPI_LONG, ring);
  p.expect(around[0], p.value(before, 0));
  p.expect(around[1], p.value(after, 0));
  if (g.size > 2) {  // with two, both neighbours are the same and libraries differ in which is which
    MPI_Neighbor_alltoall(letters, 1, MPI_LONG, around, 1, MPI_LONG, ring);
    p.expect(around[0], p.value(before, 2));
    p.expect(around[1], p.value(after, 1));
  }
  MPI_Comm_free(&ring);
}

// Each thread on a communicator of its own.
void threads(Program& p, const Group& g) {
  if (!p.threads) return;
  constexpr int kThreads = 3;
  MPI_Comm comms[kThreads];
  for (MPI_Comm& comm : comms) MPI_Comm_dup(g.comm, &comm);
  std::atomic<long> wrong{0};
  std::vector<std::thread> running;
  for (int t = 0; t < kThreads; ++t) {
    running.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        long in = p.value(g.rank, 100 * t + i), out = -1, should_be = 0, got = -1;
        for (int rank = 0; rank < g.size; ++rank) should_be += p.value(rank, 100 * t + i);
        MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, comms[t]);
        const int before = (g.rank + g.size - 1) % g.size;
        MPI_Sendrecv(&in, 1, MPI_LONG, (g.rank + 1) % g.size, t, &got, 1, MPI_LONG, before, t, comms[t],
                     MPI_STATUS_IGNORE);
        if (out != should_be || got != p.value(before, 100 * t + i)) ++wrong;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
  p.expect(wrong.load(), 0);
}

}  // namespace

void add_communicators(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {made_and_freed, between_groups, neighbours, threads});
}
