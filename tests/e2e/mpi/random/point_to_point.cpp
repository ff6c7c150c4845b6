// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "program.h"

namespace {

constexpr int kTag = 17;

int after(const Group& g) {
  return (g.rank + 1) % g.size;
}
int before(const Group& g) {
  return (g.rank + g.size - 1) % g.size;
}

std::vector<long> letter(const Program& p, int from, size_t count) {
  std::vector<long> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = p.value(from, static_cast<int>(i));
  return values;
}

size_t some_count(Program& p) {
  return static_cast<size_t>(p.draws.chance(20) ? 1 + p.draws.below(60000) : 1 + p.draws.below(300));
}

// Even ranks send first, odd ones receive first; the last of an odd number waits for its turn.
void blocking_ring(Program& p, const Group& g) {
  const size_t count = some_count(p);
  const int how = p.draws.below(3);
  const std::vector<long> out = letter(p, g.rank, count);
  std::vector<long> in(count);
  std::vector<char> attached;
  const auto send = [&] {
    const int length = static_cast<int>(count);
    if (how == 0) MPI_Send(out.data(), length, MPI_LONG, after(g), kTag, g.comm);
    if (how == 1) MPI_Ssend(out.data(), length, MPI_LONG, after(g), kTag, g.comm);
    if (how == 2) MPI_Bsend(out.data(), length, MPI_LONG, after(g), kTag, g.comm);
  };
  MPI_Status status;
  if (g.size == 1) return;
  if (how == 2) {
    attached.resize(count * sizeof(long) + MPI_BSEND_OVERHEAD);
    MPI_Buffer_attach(attached.data(), static_cast<int>(attached.size()));
  }
  if (g.rank % 2 == 0) send();
  MPI_Recv(in.data(), static_cast<int>(count), MPI_LONG, before(g), kTag, g.comm, &status);
  if (g.rank % 2 == 1) send();
  if (how == 2) {
    void* buffer = nullptr;
    int size = 0;
    MPI_Buffer_detach(&buffer, &size);
    p.expect(size, static_cast<long>(attached.size()));
  }
  int received = 0;
  MPI_Get_count(&status, MPI_LONG, &received);
  p.expect(received, static_cast<long>(count));
  p.expect(status.MPI_SOURCE, before(g));
  p.expect_all(in, letter(p, before(g), count));
}

void exchange(Program& p, const Group& g) {
  const size_t count = some_count(p);
  std::vector<long> data = letter(p, g.rank, count), in(count);
  if (p.draws.chance(50)) {
    MPI_Sendrecv_replace(data.data(), static_cast<int>(count), MPI_LONG, after(g), kTag, before(g), kTag, g.comm,
                         MPI_STATUS_IGNORE);
    p.expect_all(data, letter(p, before(g), count));
  } else {
    MPI_Status status;
    MPI_Sendrecv(data.data(), static_cast<int>(count), MPI_LONG, after(g), kTag, in.data(), static_cast<int>(count),
                 MPI_LONG, before(g), kTag, g.comm, &status);
    p.expect(status.MPI_TAG, kTag);
    p.expect_all(in, letter(p, before(g), count));
  }
}

// Everybody to everybody, completed in one of many ways.
void many_requests(Program& p, const Group& g) {
  const size_t count = static_cast<size_t>(1 + p.draws.below(400));
  const int how = p.draws.below(5);
  const size_t n = static_cast<size_t>(g.size);
  std::vector<std::vector<long>> in(n, std::vector<long>(count));
  const std::vector<long> out = letter(p, g.rank, count);
  std::vector<MPI_Request> requests(2 * n);
  for (size_t rank = 0; rank < n; ++rank) {
    MPI_Irecv(in[rank].data(), static_cast<int>(count), MPI_LONG, static_cast<int>(rank), kTag, g.comm,
              &requests[rank]);
  }
  for (size_t rank = 0; rank < n; ++rank) {
    MPI_Isend(out.data(), static_cast<int>(count), MPI_LONG, static_cast<int>(rank), kTag, g.comm, &requests[n + rank]);
  }
  const int total = static_cast<int>(requests.size());
  if (how == 0) MPI_Waitall(total, requests.data(), MPI_STATUSES_IGNORE);
  if (how == 1) {
    for (MPI_Request& request : requests) MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  if (how == 2) {
    for (int done = 0, index = 0; done < total; ++done) MPI_Waitany(total, requests.data(), &index, MPI_STATUS_IGNORE);
  }
  if (how == 3) {
    std::vector<int> indices(requests.size());
    for (int done = 0; done < total;) {
      int some = 0;
      MPI_Waitsome(total, requests.data(), &some, indices.data(), MPI_STATUSES_IGNORE);
      done += some;
    }
  }
  if (how == 4) {
    int done = 0;
    while (done == 0) MPI_Testall(total, requests.data(), &done, MPI_STATUSES_IGNORE);
  }
  for (size_t rank = 0; rank < n; ++rank) p.expect_all(in[rank], letter(p, static_cast<int>(rank), count));
  // All are null now: waiting for none of them must come back at once.
  int index = 0;
  MPI_Waitany(total, requests.data(), &index, MPI_STATUS_IGNORE);
  p.expect(index == MPI_UNDEFINED ? 1 : 0, 1);
}

// One receives from all, from whom it comes first. The barrier keeps later messages out of it.
void any_source(Program& p, const Group& g) {
  const int root = p.draws.below(1 << 20) % g.size, how = p.draws.below(3);
  const bool any_tag = p.draws.chance(50);
  if (g.rank != root) {
    const std::vector<long> out = letter(p, g.rank, static_cast<size_t>(1 + g.rank));
    MPI_Send(out.data(), static_cast<int>(out.size()), MPI_LONG, root, kTag + 1, g.comm);
  } else {
    long sum = 0, should_be = 0;
    for (int rank = 0; rank < g.size; ++rank) {
      if (rank != root) should_be += p.value(rank, rank) * (rank + 1);
    }
    for (int message = 1; message < g.size; ++message) {
      const int tag = any_tag ? MPI_ANY_TAG : kTag + 1;
      MPI_Status status;
      std::vector<long> in(static_cast<size_t>(g.size));
      int count = g.size;
      if (how == 0) {
        MPI_Recv(in.data(), count, MPI_LONG, MPI_ANY_SOURCE, tag, g.comm, &status);
      } else if (how == 1) {
        int here = 0;
        while (message % 2 == 1 && here == 0) MPI_Iprobe(MPI_ANY_SOURCE, tag, g.comm, &here, &status);
        if (here == 0) MPI_Probe(MPI_ANY_SOURCE, tag, g.comm, &status);
        MPI_Get_count(&status, MPI_LONG, &count);
        MPI_Recv(in.data(), count, MPI_LONG, status.MPI_SOURCE, status.MPI_TAG, g.comm, &status);
      } else {
        MPI_Message handle;
        MPI_Mprobe(MPI_ANY_SOURCE, tag, g.comm, &handle, &status);
        MPI_Get_count(&status, MPI_LONG, &count);
        MPI_Mrecv(in.data(), count, MPI_LONG, &handle, &status);
      }
      MPI_Get_count(&status, MPI_LONG, &count);
      p.expect(status.MPI_TAG, kTag + 1);
      if (count != status.MPI_SOURCE + 1) ++p.faults;
      sum += in[static_cast<size_t>(count - 1)] * count;  // in any order the same
    }
    p.expect(sum, should_be);
  }
  MPI_Barrier(g.comm);
}

void persistent(Program& p, const Group& g) {
  const size_t count = static_cast<size_t>(1 + p.draws.below(200));
  std::vector<long> out(count), in(count);
  MPI_Request requests[2];
  MPI_Send_init(out.data(), static_cast<int>(count), MPI_LONG, after(g), kTag + 2, g.comm, &requests[0]);
  MPI_Recv_init(in.data(), static_cast<int>(count), MPI_LONG, before(g), kTag + 2, g.comm, &requests[1]);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < count; ++i) out[i] = p.value(g.rank, static_cast<int>(i) + round);
    MPI_Startall(2, requests);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < count; ++i) p.expect(in[i], p.value(before(g), static_cast<int>(i) + round));
  }
  MPI_Request_free(&requests[0]);
  MPI_Request_free(&requests[1]);
}

// Every second element of a strided type, to nobody as well.
void derived_type(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(100);
  MPI_Datatype strided;
  MPI_Type_vector(count, 1, 2, MPI_LONG, &strided);
  MPI_Type_commit(&strided);
  std::vector<long> out(static_cast<size_t>(2 * count)), in(out.size(), -1);
  for (int i = 0; i < 2 * count; ++i) out[static_cast<size_t>(i)] = p.value(g.rank, i);
  MPI_Sendrecv(out.data(), 1, strided, after(g), kTag + 3, in.data(), 1, strided, before(g), kTag + 3, g.comm,
               MPI_STATUS_IGNORE);
  MPI_Send(out.data(), 1, strided, MPI_PROC_NULL, kTag, g.comm);
  MPI_Status status;
  MPI_Recv(out.data(), 1, strided, MPI_PROC_NULL, kTag, g.comm, &status);
  p.expect(status.MPI_SOURCE == MPI_PROC_NULL ? 1 : 0, 1);
  MPI_Bcast(in.data(), 1, strided, 0, g.comm);
  MPI_Type_free(&strided);
  for (int i = 0; i < 2 * count; ++i) {
    p.expect(in[static_cast<size_t>(i)], i % 2 == 0 ? p.value((g.size - 1) % g.size, i) : -1);
  }
}

}  // namespace

void add_point_to_point(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {blocking_ring, exchange, many_requests, any_source, persistent, derived_type});
}
