// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "program.h"

namespace {

// Two halves and what joins them. `left`: how many are in the lower half.
struct Halves {
  MPI_Comm half = MPI_COMM_NULL, inter = MPI_COMM_NULL;
  int left, side, rank, mine, others, first_other;

  explicit Halves(const Group& g) : left(std::max(1, g.size / 3)), side(g.rank < left ? 0 : 1) {
    MPI_Comm_split(g.comm, side, g.rank, &half);
    MPI_Intercomm_create(half, 0, g.comm, side == 0 ? left : 0, 6, &inter);
    rank = side == 0 ? g.rank : g.rank - left;
    mine = side == 0 ? left : g.size - left;
    others = g.size - mine;
    first_other = side == 0 ? left : 0;
  }
  ~Halves() {
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
  }
  // The root argument of a rooted call whose root is rank `root` of side `of`.
  int root_argument(int of, int root) const { return side != of ? root : rank == root ? MPI_ROOT : MPI_PROC_NULL; }
};

// Rooted and uneven collectives between groups: each side gives to the other.
void rooted_between_groups(Program& p, const Group& g) {
  if (g.size < 2) return;
  const Halves h(g);
  const int of = p.draws.below(2), how = p.draws.below(6);
  const int root = p.draws.below(1 << 20) % (of == 0 ? h.left : g.size - h.left);
  const int argument = h.root_argument(of, root);
  const int world_root = of == 0 ? root : h.left + root;
  const bool is_root = argument == MPI_ROOT, gives = h.side != of;
  const size_t others = static_cast<size_t>(h.others);
  long in = p.value(g.rank, 0), out = -1;
  std::vector<long> all(others, -1);
  if (how == 0) {
    MPI_Reduce(&in, &out, 1, MPI_LONG, MPI_SUM, argument, h.inter);
    long should_be = 0;
    for (int i = 0; i < h.others; ++i) should_be += p.value(h.first_other + i, 0);
    if (is_root) p.expect(out, should_be);
  } else if (how == 1) {
    MPI_Gather(&in, 1, MPI_LONG, all.data(), 1, MPI_LONG, argument, h.inter);
    for (int i = 0; is_root && i < h.others; ++i) p.expect(all[static_cast<size_t>(i)], p.value(h.first_other + i, 0));
  } else if (how == 2) {
    for (int i = 0; i < h.others; ++i) all[static_cast<size_t>(i)] = p.value(g.rank, 10 + i);
    MPI_Scatter(all.data(), 1, MPI_LONG, &out, 1, MPI_LONG, argument, h.inter);
    if (gives) p.expect(out, p.value(world_root, 10 + h.rank));
  } else if (how == 3) {  // everybody of one side sends as many as its rank there says
    std::vector<int> counts, places;
    int total = 0;
    for (int i = 0; i < h.others; ++i) {
      counts.push_back(i);
      places.push_back(total);
      total += i;
    }
    const std::vector<long> own(static_cast<size_t>(h.rank), in);
    std::vector<long> joined(static_cast<size_t>(total), -1);
    MPI_Gatherv(own.data(), h.rank, MPI_LONG, joined.data(), counts.data(), places.data(), MPI_LONG, argument, h.inter);
    for (int i = 0, at = 0; is_root && i < h.others; ++i) {
      for (int j = 0; j < i; ++j) p.expect(joined[static_cast<size_t>(at++)], p.value(h.first_other + i, 0));
    }
  } else if (how == 4) {
    std::vector<long> letters;
    for (int i = 0; i < h.others; ++i) letters.push_back(p.value(g.rank, h.first_other + i));
    MPI_Alltoall(letters.data(), 1, MPI_LONG, all.data(), 1, MPI_LONG, h.inter);
    for (int i = 0; i < h.others; ++i) p.expect(all[static_cast<size_t>(i)], p.value(h.first_other + i, g.rank));
  } else {
    std::vector<int> counts, places;
    int total = 0;
    for (int i = 0; i < h.others; ++i) {
      counts.push_back(1 + i);
      places.push_back(total);
      total += 1 + i;
    }
    const std::vector<long> own(static_cast<size_t>(1 + h.rank), in);
    std::vector<long> joined(static_cast<size_t>(total), -1);
    MPI_Allgatherv(own.data(), 1 + h.rank, MPI_LONG, joined.data(), counts.data(), places.data(), MPI_LONG, h.inter);
    for (int i = 0, at = 0; i < h.others; ++i) {
      for (int j = 0; j <= i; ++j) p.expect(joined[static_cast<size_t>(at++)], p.value(h.first_other + i, 0));
    }
  }
}

// Point to point between groups, and by request.
void messages_between_groups(Program& p, const Group& g) {
  if (g.size < 2) return;
  const Halves h(g);
  long in = -1, out = p.value(g.rank, 1), sum = 0, should_be = 0;
  if (h.rank == 0) {
    MPI_Sendrecv(&out, 1, MPI_LONG, 0, 8, &in, 1, MPI_LONG, 0, 8, h.inter, MPI_STATUS_IGNORE);
    p.expect(in, p.value(h.first_other, 1));
  }
  MPI_Request request;
  MPI_Iallreduce(&out, &sum, 1, MPI_LONG, MPI_SUM, h.inter, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int i = 0; i < h.others; ++i) should_be += p.value(h.first_other + i, 1);
  p.expect(sum, should_be);
}

// Made by its members alone while the others do something else, or made by request.
void made_by_some(Program& p, const Group& g) {
  const bool by_request = p.draws.chance(40);
  MPI_Comm made = MPI_COMM_NULL;
  if (by_request) {
    MPI_Request request;
    MPI_Comm_idup(g.comm, &made, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  } else {
    MPI_Group all, some;
    MPI_Comm_group(g.comm, &all);
    const int out = g.size > 1 ? p.draws.below(1 << 20) % g.size : -1;
    if (out >= 0) MPI_Group_excl(all, 1, &out, &some);
    if (g.rank != out) MPI_Comm_create_group(g.comm, out >= 0 ? some : all, 60, &made);
    MPI_Group_free(&all);
    if (out >= 0) MPI_Group_free(&some);
  }
  if (made != MPI_COMM_NULL) {
    const Group inner = group_of(made);
    long in = inner.rank + 1, sum = 0;
    MPI_Allreduce(&in, &sum, 1, MPI_LONG, MPI_SUM, made);
    p.expect(sum, static_cast<long>(inner.size) * (inner.size + 1) / 2);
    MPI_Comm_free(&made);
  }
}

// A directed graph: each rank hears the two before it and tells the two after it; uneven letters.
void graph(Program& p, const Group& g) {
  if (g.size < 3) return;
  const int n = g.size, r = g.rank;
  const std::array<int, 2> from{(r + n - 1) % n, (r + n - 2) % n}, to{(r + 1) % n, (r + 2) % n};
  MPI_Comm graph;
  MPI_Dist_graph_create_adjacent(g.comm, 2, from.data(), MPI_UNWEIGHTED, 2, to.data(), MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                 &graph);
  // As many as the number of the receiver, plus one.
  std::vector<long> out;
  const std::array<int, 2> sends{to[0] + 1, to[1] + 1}, send_places{0, to[0] + 1};
  for (const int receiver : to) {
    for (int i = 0; i <= receiver; ++i) out.push_back(p.value(r, 100 * receiver + i));
  }
  const std::array<int, 2> receives{r + 1, r + 1}, receive_places{0, r + 1};
  std::vector<long> in(static_cast<size_t>(2 * (r + 1)), -1);
  MPI_Neighbor_alltoallv(out.data(), sends.data(), send_places.data(), MPI_LONG, in.data(), receives.data(),
                         receive_places.data(), MPI_LONG, graph);
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i <= r; ++i) {
      p.expect(in[static_cast<size_t>(k * (r + 1) + i)], p.value(from[static_cast<size_t>(k)], 100 * r + i));
    }
  }
  long mine = p.value(r, 9);
  std::array<long, 2> heard{-1, -1};
  if (p.draws.chance(50)) {
    MPI_Neighbor_allgather(&mine, 1, MPI_LONG, heard.data(), 1, MPI_LONG, graph);
  } else {
    MPI_Request request;
    MPI_Ineighbor_allgather(&mine, 1, MPI_LONG, heard.data(), 1, MPI_LONG, graph, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  p.expect(heard[0], p.value(from[0], 9));
  p.expect(heard[1], p.value(from[1], 9));
  MPI_Comm_free(&graph);
}

// What a generalised request says of itself.
int answer(void*, MPI_Status* status) {
  status->MPI_SOURCE = status->MPI_TAG = 0;
  MPI_Status_set_cancelled(status, 0);
  return MPI_Status_set_elements(status, MPI_LONG, 3);
}

// Threads that wait for each other inside one rank, for another rank's, and for a request that no message ends.
void threads_of_all_kinds(Program& p, const Group& g) {
  // In MPICH 4.0.2 a thread that waits can keep another of its rank from its lock for ever.
  if (!p.threads || is_mpich_402()) return;
  std::array<MPI_Comm, 2> comms{};
  for (MPI_Comm& comm : comms) MPI_Comm_dup(g.comm, &comm);
  const int after = (g.rank + 1) % g.size, before = (g.rank + g.size - 1) % g.size;
  std::atomic<long> wrong{0};
  const bool late = p.draws.chance(50);
  std::thread answers([&] {  // hears the one before with any of several calls, passes on to its own main thread
    for (int i = 0; i < 4; ++i) {
      long in = -1;
      MPI_Status status;
      if (i % 2 == 0) {
        MPI_Probe(MPI_ANY_SOURCE, i, comms[0], &status);
        MPI_Recv(&in, 1, MPI_LONG, status.MPI_SOURCE, i, comms[0], &status);
      } else {
        MPI_Recv(&in, 1, MPI_LONG, before, i, comms[0], &status);
      }
      if (status.MPI_SOURCE != before || in != p.value(before, i)) ++wrong;
      MPI_Send(&in, 1, MPI_LONG, g.rank, 70 + i, comms[1]);
    }
  });
  MPI_Request own;
  MPI_Grequest_start(
      answer, [](void*) -> int { return MPI_SUCCESS; }, [](void*, int) -> int { return MPI_SUCCESS; }, nullptr, &own);
  std::thread ends([&] {
    if (late) delay(800, false);
    MPI_Grequest_complete(own);
  });
  for (int i = 0; i < 4; ++i) {
    long out = p.value(g.rank, i), in = -1;
    MPI_Ssend(&out, 1, MPI_LONG, after, i, comms[0]);
    MPI_Recv(&in, 1, MPI_LONG, g.rank, 70 + i, comms[1], MPI_STATUS_IGNORE);
    p.expect(in, p.value(before, i));
  }
  MPI_Status status;
  int elements = 0;
  MPI_Wait(&own, &status);
  MPI_Get_elements(&status, MPI_LONG, &elements);
  p.expect(elements, 3);
  ends.join();
  answers.join();
  p.expect(wrong.load(), 0);
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

}  // namespace

void add_shapes(std::vector<Operation>& operations) {
  operations.insert(operations.end(),
                    {rooted_between_groups, messages_between_groups, made_by_some, graph, threads_of_all_kinds});
}
