// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "program.h"

namespace {

std::vector<long> mine(const Program& p, int rank, int count) {
  std::vector<long> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = p.value(rank, i);
  return values;
}

long sum_at(const Program& p, const Group& g, int place) {
  long sum = 0;
  for (int rank = 0; rank < g.size; ++rank) sum += p.value(rank, place);
  return sum;
}

std::vector<long> sums(const Program& p, const Group& g, int count) {
  std::vector<long> all(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<size_t>(i)] = sum_at(p, g, i);
  return all;
}

// Uneven counts, some of them zero, and where each rank's part begins.
struct Parts {
  std::vector<int> counts, begins;
  int total = 0;
};

Parts parts(Program& p, const Group& g, int most) {
  Parts parts;
  for (int rank = 0; rank < g.size; ++rank) {
    parts.begins.push_back(parts.total);
    parts.counts.push_back(
        static_cast<int>(mixed(p.step * 31u + static_cast<uint64_t>(rank)) % static_cast<unsigned>(most)));
    parts.total += parts.counts.back();
  }
  return parts;
}

std::vector<long> joined(const Program& p, const Group& g, const Parts& parts) {
  std::vector<long> all;
  for (int rank = 0; rank < g.size; ++rank) {
    const std::vector<long> part = mine(p, rank, parts.counts[static_cast<size_t>(rank)]);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

int some_count(Program& p) {
  return p.draws.chance(15) ? 1 + p.draws.below(40000) : 1 + p.draws.below(300);
}

void barrier(Program&, const Group& g) {
  MPI_Barrier(g.comm);
}

void all_reduce(Program& p, const Group& g) {
  const int count = some_count(p);
  std::vector<long> in = mine(p, g.rank, count), out(in.size());
  if (p.draws.chance(30)) {
    out = in;
    MPI_Allreduce(MPI_IN_PLACE, out.data(), count, MPI_LONG, MPI_SUM, g.comm);
  } else {
    MPI_Allreduce(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm);
  }
  p.expect_all(out, sums(p, g, count));
}

void all_reduce_double_max(Program& p, const Group& g) {
  double in = static_cast<double>(p.value(g.rank, 0)), out = 0;
  MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_MAX, g.comm);
  long most = 0;
  for (int rank = 0; rank < g.size; ++rank) most = std::max(most, p.value(rank, 0));
  p.expect(static_cast<long>(out), most);
}

void broadcast(Program& p, const Group& g) {
  const int count = some_count(p), root = p.draws.below(1 << 20) % g.size;
  std::vector<long> data(static_cast<size_t>(count));
  if (g.rank == root) data = mine(p, root, count);
  MPI_Bcast(data.data(), count, MPI_LONG, root, g.comm);
  p.expect_all(data, mine(p, root, count));
}

void reduce(Program& p, const Group& g) {
  const int count = some_count(p), root = p.draws.below(1 << 20) % g.size;
  const bool in_place = p.draws.chance(30) && root == 0;  // MPICH 4.0.2 crashes elsewhere, from 2 KiB on
  std::vector<long> in = mine(p, g.rank, count), out(in.size());
  if (in_place && g.rank == root) {
    out = in;
    MPI_Reduce(MPI_IN_PLACE, out.data(), count, MPI_LONG, MPI_SUM, root, g.comm);
  } else {
    MPI_Reduce(in.data(), g.rank == root ? out.data() : nullptr, count, MPI_LONG, MPI_SUM, root, g.comm);
  }
  if (g.rank == root) p.expect_all(out, sums(p, g, count));
}

void all_gather(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(200);
  std::vector<long> out(static_cast<size_t>(count * g.size));
  const std::vector<long> in = mine(p, g.rank, count);
  if (p.draws.chance(30)) {
    std::copy(in.begin(), in.end(), out.begin() + count * g.rank);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out.data(), count, MPI_LONG, g.comm);
  } else {
    MPI_Allgather(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, g.comm);
  }
  for (int rank = 0; rank < g.size; ++rank) {
    p.expect_all({out.begin() + count * rank, out.begin() + count * (rank + 1)}, mine(p, rank, count));
  }
}

void all_gather_v(Program& p, const Group& g) {
  const Parts all = parts(p, g, 150);
  const std::vector<long> in = mine(p, g.rank, all.counts[static_cast<size_t>(g.rank)]);
  std::vector<long> out(static_cast<size_t>(all.total));
  if (p.draws.chance(30)) {
    std::copy(in.begin(), in.end(), out.begin() + all.begins[static_cast<size_t>(g.rank)]);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out.data(), all.counts.data(), all.begins.data(), MPI_LONG,
                   g.comm);
  } else {
    MPI_Allgatherv(in.data(), static_cast<int>(in.size()), MPI_LONG, out.data(), all.counts.data(), all.begins.data(),
                   MPI_LONG, g.comm);
  }
  p.expect_all(out, joined(p, g, all));
}

void gather(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(200), root = p.draws.below(1 << 20) % g.size;
  const bool in_place = p.draws.chance(30);
  const std::vector<long> in = mine(p, g.rank, count);
  std::vector<long> out(g.rank == root ? static_cast<size_t>(count * g.size) : 0);
  if (g.rank != root) {  // what only the root reads is left undefined elsewhere
    MPI_Gather(in.data(), count, MPI_LONG, nullptr, -7, MPI_DATATYPE_NULL, root, g.comm);
    return;
  }
  if (in_place) {
    std::copy(in.begin(), in.end(), out.begin() + count * root);
    MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out.data(), count, MPI_LONG, root, g.comm);
  } else {
    MPI_Gather(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, root, g.comm);
  }
  for (int rank = 0; rank < g.size; ++rank) {
    p.expect_all({out.begin() + count * rank, out.begin() + count * (rank + 1)}, mine(p, rank, count));
  }
}

void gather_v(Program& p, const Group& g) {
  const Parts all = parts(p, g, 150);
  const int root = p.draws.below(1 << 20) % g.size;
  const std::vector<long> in = mine(p, g.rank, all.counts[static_cast<size_t>(g.rank)]);
  std::vector<long> out(static_cast<size_t>(all.total));
  if (g.rank == root) {
    MPI_Gatherv(in.data(), static_cast<int>(in.size()), MPI_LONG, out.data(), all.counts.data(), all.begins.data(),
                MPI_LONG, root, g.comm);
    p.expect_all(out, joined(p, g, all));
  } else {
    MPI_Gatherv(in.data(), static_cast<int>(in.size()), MPI_LONG, nullptr, nullptr, nullptr, MPI_DATATYPE_NULL, root,
                g.comm);
  }
}

void scatter(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(200), root = p.draws.below(1 << 20) % g.size;
  std::vector<long> all, out(static_cast<size_t>(count));
  for (int rank = 0; rank < g.size; ++rank) {
    const std::vector<long> part = mine(p, rank, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  if (g.rank == root && p.draws.chance(100)) {
    MPI_Scatter(all.data(), count, MPI_LONG, out.data(), count, MPI_LONG, root, g.comm);
  } else if (g.rank != root) {
    p.draws.chance(100);
    MPI_Scatter(nullptr, -7, MPI_DATATYPE_NULL, out.data(), count, MPI_LONG, root, g.comm);
  }
  p.expect_all(out, mine(p, g.rank, count));
}

void scatter_v(Program& p, const Group& g) {
  const Parts all = parts(p, g, 150);
  const int root = p.draws.below(1 << 20) % g.size;
  const bool in_place = p.draws.chance(30);
  const int count = all.counts[static_cast<size_t>(g.rank)];
  std::vector<long> data = joined(p, g, all), out(static_cast<size_t>(count));
  if (g.rank == root && in_place) {
    MPI_Scatterv(data.data(), all.counts.data(), all.begins.data(), MPI_LONG, MPI_IN_PLACE, -7, MPI_DATATYPE_NULL, root,
                 g.comm);
    return;
  }
  if (g.rank == root) {
    MPI_Scatterv(data.data(), all.counts.data(), all.begins.data(), MPI_LONG, out.data(), count, MPI_LONG, root,
                 g.comm);
  } else {
    MPI_Scatterv(nullptr, nullptr, nullptr, MPI_DATATYPE_NULL, out.data(), count, MPI_LONG, root, g.comm);
  }
  p.expect_all(out, mine(p, g.rank, count));
}

// What `from` sends to `to` in an all-to-all.
long letter(const Program& p, int from, int to, int place) {
  return p.value(from * 64 + to, place);
}

void all_to_all(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(120);
  std::vector<long> in(static_cast<size_t>(count * g.size)), out(in.size());
  for (int to = 0; to < g.size; ++to) {
    for (int i = 0; i < count; ++i) in[static_cast<size_t>(to * count + i)] = letter(p, g.rank, to, i);
  }
  if (p.draws.chance(25)) {
    out = in;
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out.data(), count, MPI_LONG, g.comm);
  } else {
    MPI_Alltoall(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, g.comm);
  }
  for (int from = 0; from < g.size; ++from) {
    for (int i = 0; i < count; ++i) p.expect(out[static_cast<size_t>(from * count + i)], letter(p, from, g.rank, i));
  }
}

// Uneven, and with alltoallw's types and displacements in bytes.
void all_to_all_uneven(Program& p, const Group& g) {
  const bool w = p.draws.chance(40);
  const auto count_of = [&](int from, int to) {
    return static_cast<int>(mixed(p.step * 131u + static_cast<uint64_t>(from * 64 + to)) % 40u);
  };
  std::vector<int> send_counts, receive_counts, send_begins, receive_begins;
  int sent = 0, received = 0;
  for (int rank = 0; rank < g.size; ++rank) {
    send_counts.push_back(count_of(g.rank, rank));
    receive_counts.push_back(count_of(rank, g.rank));
    send_begins.push_back(w ? sent * static_cast<int>(sizeof(long)) : sent);
    receive_begins.push_back(w ? received * static_cast<int>(sizeof(long)) : received);
    sent += send_counts.back();
    received += receive_counts.back();
  }
  std::vector<long> in, out(static_cast<size_t>(received));
  for (int to = 0; to < g.size; ++to) {
    for (int i = 0; i < send_counts[static_cast<size_t>(to)]; ++i) in.push_back(letter(p, g.rank, to, i));
  }
  if (w) {
    const std::vector<MPI_Datatype> types(static_cast<size_t>(g.size), MPI_LONG);
    MPI_Alltoallw(in.data(), send_counts.data(), send_begins.data(), types.data(), out.data(), receive_counts.data(),
                  receive_begins.data(), types.data(), g.comm);
  } else {
    MPI_Alltoallv(in.data(), send_counts.data(), send_begins.data(), MPI_LONG, out.data(), receive_counts.data(),
                  receive_begins.data(), MPI_LONG, g.comm);
  }
  size_t at = 0;
  for (int from = 0; from < g.size; ++from) {
    for (int i = 0; i < receive_counts[static_cast<size_t>(from)]; ++i) p.expect(out[at++], letter(p, from, g.rank, i));
  }
}

void reduce_scatter(Program& p, const Group& g) {
  const Parts all = parts(p, g, 100);
  std::vector<long> in = mine(p, g.rank, all.total);
  const size_t begin = static_cast<size_t>(all.begins[static_cast<size_t>(g.rank)]);
  const size_t count = static_cast<size_t>(all.counts[static_cast<size_t>(g.rank)]);
  const std::vector<long> sum = sums(p, g, all.total);
  const std::vector<long> should_be(sum.begin() + static_cast<long>(begin),
                                    sum.begin() + static_cast<long>(begin + count));
  if (p.draws.chance(30)) {
    MPI_Reduce_scatter(MPI_IN_PLACE, in.data(), all.counts.data(), MPI_LONG, MPI_SUM, g.comm);
    p.expect_all({in.begin(), in.begin() + static_cast<long>(count)}, should_be);
  } else {
    std::vector<long> out(count);
    MPI_Reduce_scatter(in.data(), out.data(), all.counts.data(), MPI_LONG, MPI_SUM, g.comm);
    p.expect_all(out, should_be);
  }
}

void reduce_scatter_block(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(80);
  const std::vector<long> in = mine(p, g.rank, count * g.size), sum = sums(p, g, count * g.size);
  std::vector<long> out(static_cast<size_t>(count));
  MPI_Reduce_scatter_block(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm);
  p.expect_all(out, {sum.begin() + count * g.rank, sum.begin() + count * (g.rank + 1)});
}

void scan(Program& p, const Group& g) {
  const bool exclusive = p.draws.chance(50);
  long in = p.value(g.rank, 0), out = -1, should_be = exclusive ? 0 : in;
  for (int rank = 0; rank < g.rank; ++rank) should_be += p.value(rank, 0);
  if (exclusive) {
    MPI_Exscan(&in, &out, 1, MPI_LONG, MPI_SUM, g.comm);
    if (g.rank == 0) return;  // undefined there
  } else {
    MPI_Scan(&in, &out, 1, MPI_LONG, MPI_SUM, g.comm);
  }
  p.expect(out, should_be);
}

// Several under way at once, a blocking one between their start and their end.
void non_blocking(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(500), root = p.draws.below(1 << 20) % g.size;
  std::vector<long> in = mine(p, g.rank, count), out(in.size()), data(in.size()), all(static_cast<size_t>(g.size));
  if (g.rank == root) data = mine(p, root + 1000, count);
  long single = p.value(g.rank, 5);
  MPI_Request requests[4];
  MPI_Iallreduce(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm, &requests[0]);
  MPI_Ibcast(data.data(), count, MPI_LONG, root, g.comm, &requests[1]);
  MPI_Iallgather(&single, 1, MPI_LONG, all.data(), 1, MPI_LONG, g.comm, &requests[2]);
  MPI_Ibarrier(g.comm, &requests[3]);
  long between = p.value(g.rank, 6), sum = 0;
  MPI_Allreduce(&between, &sum, 1, MPI_LONG, MPI_SUM, g.comm);
  p.expect(sum, sum_at(p, g, 6));
  switch (p.draws.below(3)) {
    case 0:
      MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
      break;
    case 1:
      for (int done = 0, index = 0; done < 4; ++done) MPI_Waitany(4, requests, &index, MPI_STATUS_IGNORE);
      break;
    default:
      for (MPI_Request& request : requests) {
        int done = 0;
        while (done == 0) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      }
  }
  p.expect_all(out, sums(p, g, count));
  p.expect_all(data, mine(p, root + 1000, count));
  for (int rank = 0; rank < g.size; ++rank) p.expect(all[static_cast<size_t>(rank)], p.value(rank, 5));
}

}  // namespace

void add_collectives(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {barrier, all_reduce, all_reduce_double_max, broadcast, reduce, all_gather,
                                       all_gather_v, gather, gather_v, scatter, scatter_v, all_to_all,
                                       all_to_all_uneven, reduce_scatter, reduce_scatter_block, scan, non_blocking});
}
