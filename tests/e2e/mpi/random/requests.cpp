// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <functional>
#include <numeric>

#include "program.h"

namespace {

using Values = std::vector<long>;

// Requests under way, what they read and write, and what has to be true once they are complete.
struct Mixture {
  Program& p;
  const Group& g;
  std::deque<Values> buffers;  // stay where they are
  std::deque<std::vector<int>> numbers;
  std::vector<MPI_Request> requests;
  std::vector<std::function<void()>> checks;

  Values& buffer(Values values) { return buffers.emplace_back(std::move(values)); }
  Values& empty(int count) { return buffer(Values(static_cast<size_t>(count), -1)); }
  std::vector<int>& ints(std::vector<int> values) { return numbers.emplace_back(std::move(values)); }
  MPI_Request* request() {
    requests.push_back(MPI_REQUEST_NULL);
    return &requests.back();
  }
  void must_be(const Values& is, Values should_be) {
    checks.emplace_back([this, &is, should_be = std::move(should_be)] { p.expect_all(is, should_be); });
  }
  Values of(int rank, int count, int salt) const {
    Values values(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = p.value(rank, 1000 * salt + i);
    return values;
  }
  Values sum(int count, int salt, int first, int last) const {
    Values sums(static_cast<size_t>(count), 0);
    for (int rank = first; rank < last; ++rank) {
      const Values part = of(rank, count, salt);
      for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
    }
    return sums;
  }
  Values all(int count, int salt) const {
    Values joined;
    for (int rank = 0; rank < g.size; ++rank) {
      const Values part = of(rank, count, salt);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }
  Values slice(const Values& from, int begin, int count) const {
    return {from.begin() + begin, from.begin() + begin + count};
  }
  // Rank r's share when shares are uneven; the first has none.
  std::vector<int> shares(int scale) const {
    std::vector<int> counts;
    for (int rank = 0; rank < g.size; ++rank) counts.push_back(rank * scale);
    return counts;
  }
  static std::vector<int> begins(const std::vector<int>& counts) {
    std::vector<int> places(counts.size(), 0);
    std::partial_sum(counts.begin(), counts.end() - 1, places.begin() + 1);
    return places;
  }
};

void start_rooted(Mixture& m, int kind, int count, int root, int salt) {
  const Group& g = m.g;
  const bool is_root = g.rank == root;
  if (kind == 0) {
    Values& data = m.buffer(is_root ? m.of(root, count, salt) : Values(static_cast<size_t>(count)));
    MPI_Ibcast(data.data(), count, MPI_LONG, root, g.comm, m.request());
    m.must_be(data, m.of(root, count, salt));
  } else if (kind == 1) {
    Values& out = m.empty(is_root ? count : 0);
    MPI_Ireduce(m.buffer(m.of(g.rank, count, salt)).data(), out.data(), count, MPI_LONG, MPI_SUM, root, g.comm,
                m.request());
    if (is_root) m.must_be(out, m.sum(count, salt, 0, g.size));
  } else if (kind == 2) {
    Values& out = m.empty(is_root ? count * g.size : 0);
    MPI_Igather(m.buffer(m.of(g.rank, count, salt)).data(), count, MPI_LONG, out.data(), count, MPI_LONG, root, g.comm,
                m.request());
    if (is_root) m.must_be(out, m.all(count, salt));
  } else if (kind == 3) {
    Values& out = m.empty(count);
    Values& in = m.buffer(is_root ? m.all(count, salt) : Values());
    MPI_Iscatter(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, root, g.comm, m.request());
    m.must_be(out, m.of(g.rank, count, salt));
  } else {
    const int mine = g.rank * 3;
    std::vector<int>& counts = m.ints(m.shares(3));
    std::vector<int>& places = m.ints(Mixture::begins(counts));
    Values joined;
    for (int rank = 0; rank < g.size; ++rank) {
      const Values part = m.of(rank, rank * 3, salt);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    if (kind == 4) {
      Values& out = m.empty(is_root ? static_cast<int>(joined.size()) : 0);
      MPI_Igatherv(m.buffer(m.of(g.rank, mine, salt)).data(), mine, MPI_LONG, out.data(), counts.data(), places.data(),
                   MPI_LONG, root, g.comm, m.request());
      if (is_root) m.must_be(out, joined);
    } else {
      Values& out = m.empty(mine);
      MPI_Iscatterv(m.buffer(joined).data(), counts.data(), places.data(), MPI_LONG, out.data(), mine, MPI_LONG, root,
                    g.comm, m.request());
      m.must_be(out, m.of(g.rank, mine, salt));
    }
  }
}

void start_symmetric(Mixture& m, int kind, int count, int salt) {
  const Group& g = m.g;
  Values& in = m.buffer(m.of(g.rank, count * g.size, salt));
  if (kind == 6) {
    MPI_Ibarrier(g.comm, m.request());
  } else if (kind == 7) {
    Values& out = m.empty(count);
    MPI_Iallreduce(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm, m.request());
    m.must_be(out, m.sum(count, salt, 0, g.size));
  } else if (kind == 8) {
    Values& out = m.empty(count * g.size);
    MPI_Iallgather(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, g.comm, m.request());
    m.must_be(out, m.all(count, salt));
  } else if (kind == 9) {
    Values& out = m.empty(count * g.size);
    MPI_Ialltoall(in.data(), count, MPI_LONG, out.data(), count, MPI_LONG, g.comm, m.request());
    Values should_be;
    for (int rank = 0; rank < g.size; ++rank) {
      const Values part = m.slice(m.of(rank, count * g.size, salt), count * g.rank, count);
      should_be.insert(should_be.end(), part.begin(), part.end());
    }
    m.must_be(out, should_be);
  } else if (kind == 10) {
    Values& out = m.empty(count);
    MPI_Ireduce_scatter_block(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm, m.request());
    m.must_be(out, m.slice(m.sum(count * g.size, salt, 0, g.size), count * g.rank, count));
  } else if (kind == 11) {
    Values& out = m.empty(count);
    MPI_Iscan(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm, m.request());
    m.must_be(out, m.sum(count, salt, 0, g.rank + 1));
  } else if (kind == 12) {
    Values& out = m.empty(count);
    MPI_Iexscan(in.data(), out.data(), count, MPI_LONG, MPI_SUM, g.comm, m.request());
    if (g.rank > 0) m.must_be(out, m.sum(count, salt, 0, g.rank));
  } else {  // two messages around the ring, one of them synchronous
    const int after = (g.rank + 1) % g.size, before = (g.rank + g.size - 1) % g.size;
    Values &first = m.empty(count), &second = m.empty(count);
    MPI_Irecv(second.data(), count, MPI_LONG, before, 2 * salt + 1, g.comm, m.request());
    MPI_Issend(in.data(), count, MPI_LONG, after, 2 * salt, g.comm, m.request());
    MPI_Isend(in.data(), count, MPI_LONG, after, 2 * salt + 1, g.comm, m.request());
    MPI_Irecv(first.data(), count, MPI_LONG, before, 2 * salt, g.comm, m.request());
    m.must_be(first, m.of(before, count, salt));
    m.must_be(second, m.of(before, count, salt));
  }
}

// Each rank may end them in another way.
void complete(std::vector<MPI_Request>& requests, int how) {
  const int total = static_cast<int>(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  std::vector<int> indices(requests.size());
  int done = 0, some = 0, index = 0;
  switch (how) {
    case 0:
      MPI_Waitall(total, requests.data(), MPI_STATUSES_IGNORE);
      return;
    case 1:
      MPI_Waitall(total, requests.data(), statuses.data());
      return;
    case 2:
      for (MPI_Request& request : requests) MPI_Wait(&request, statuses.data());
      return;
    case 3:
      do MPI_Waitany(total, requests.data(), &index, statuses.data());
      while (index != MPI_UNDEFINED);
      return;
    case 4:
      do MPI_Waitsome(total, requests.data(), &some, indices.data(), statuses.data());
      while (some != MPI_UNDEFINED);
      return;
    case 5:
      do MPI_Testany(total, requests.data(), &index, &done, MPI_STATUS_IGNORE);
      while (done == 0 || index != MPI_UNDEFINED);
      return;
    case 6:
      do MPI_Testsome(total, requests.data(), &some, indices.data(), MPI_STATUSES_IGNORE);
      while (some != MPI_UNDEFINED);
      return;
    default:
      for (MPI_Request& request : requests) {
        for (done = 0; done == 0;) MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      }
  }
}

// Several at once, of every kind, blocking calls in between.
void mixture(Program& p, const Group& g) {
  Mixture m{p, g, {}, {}, {}, {}};
  m.requests.reserve(64);  // requests are handed out by address
  const int parts = 2 + p.draws.below(6);
  for (int salt = 0; salt < parts; ++salt) {
    const int kind = p.draws.below(14), root = p.draws.below(1 << 20) % g.size;
    const int count = p.draws.chance(10) ? 1 + p.draws.below(9000) : 1 + p.draws.below(60);
    if (kind < 6) start_rooted(m, kind, count, root, salt);
    if (kind >= 6) start_symmetric(m, kind, count, salt);
    if (p.draws.chance(25)) {
      long in = p.value(g.rank, salt), out = 0;
      MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, g.comm);
      p.expect(out, m.sum(salt + 1, 0, 0, g.size).back());
    }
  }
  const int late = p.draws.below(1 << 20) % g.size;
  if (p.draws.chance(30) && g.rank == late) delay(200 + p.draws.below(1500), false);
  complete(m.requests, static_cast<int>(mixed(p.step * 7 + static_cast<uint64_t>(g.rank)) % 8));
  for (const auto& check : m.checks) check();
}

// A receive that is there before its ready send.
void ready_send(Program& p, const Group& g) {
  const int after = (g.rank + 1) % g.size, before = (g.rank + g.size - 1) % g.size;
  long in = -1, out = p.value(g.rank, 3);
  MPI_Request request;
  MPI_Irecv(&in, 1, MPI_LONG, before, 40, g.comm, &request);
  MPI_Barrier(g.comm);
  MPI_Rsend(&out, 1, MPI_LONG, after, 40, g.comm);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  p.expect(in, p.value(before, 3));
}

// What nobody sends is taken back; what was never started, or is null, is over at once.
void nothing_to_wait_for(Program& p, const Group& g) {
  long place = 0;
  MPI_Request requests[3];
  MPI_Status status;
  MPI_Irecv(&place, 1, MPI_LONG, g.rank, 41, g.comm, &requests[0]);
  MPI_Cancel(&requests[0]);
  MPI_Wait(&requests[0], &status);
  int cancelled = 0, index = 0, some = 0, indices[3];
  MPI_Test_cancelled(&status, &cancelled);
  p.expect(cancelled, 1);
  MPI_Recv_init(&place, 1, MPI_LONG, g.rank, 42, g.comm, &requests[1]);
  requests[2] = MPI_REQUEST_NULL;
  MPI_Wait(&requests[1], &status);
  p.expect(status.MPI_SOURCE == MPI_ANY_SOURCE ? 1 : 0, 1);
  MPI_Waitany(3, requests, &index, &status);
  p.expect(index == MPI_UNDEFINED ? 1 : 0, 1);
  MPI_Waitsome(3, requests, &some, indices, MPI_STATUSES_IGNORE);
  p.expect(some == MPI_UNDEFINED ? 1 : 0, 1);
  MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
  MPI_Waitall(0, nullptr, MPI_STATUSES_IGNORE);
  MPI_Request_free(&requests[1]);
}

}  // namespace

void add_requests(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {mixture, mixture, mixture, ready_send, nothing_to_wait_for});
}
