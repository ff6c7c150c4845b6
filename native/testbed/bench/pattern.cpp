// SPDX-License-Identifier: Apache-2.0
#include "bench/pattern.h"

#include <algorithm>
#include <bit>

namespace powerccl::bench {
namespace {

const void* const_pointer(CUdeviceptr address) {
  return std::bit_cast<const void*>(address);
}
void* pointer(CUdeviceptr address) {
  return std::bit_cast<void*>(address);
}

// Sends and receives of one operation, fused by a group, for patterns without a call of their own (NCCL before 2.28).
class Group {
 public:
  Group(const NcclApi& nccl, const Call& call, Buffers buffers, NcclComm comm, CUstream stream)
      : nccl_(nccl),
        call_(call),
        buffers_(buffers),
        comm_(comm),
        stream_(stream),
        chunk_bytes_(call.shape.count * info(call.type).bytes) {
    nccl_.check(nccl_.group_start(), "ncclGroupStart");
  }
  void send(size_t chunk, int peer) {
    nccl_.check(nccl_.send(const_pointer(buffers_.send + chunk * chunk_bytes_), call_.shape.count,
                           info(call_.type).nccl, peer, comm_, stream_),
                "ncclSend", comm_);
  }
  void recv(size_t chunk, int peer) {
    nccl_.check(nccl_.recv(pointer(buffers_.recv + chunk * chunk_bytes_), call_.shape.count, info(call_.type).nccl,
                           peer, comm_, stream_),
                "ncclRecv", comm_);
  }
  void end() { nccl_.check(nccl_.group_end(), "ncclGroupEnd", comm_); }

 private:
  const NcclApi& nccl_;
  const Call& call_;
  Buffers buffers_;
  NcclComm comm_;
  CUstream stream_;
  size_t chunk_bytes_;
};

void enqueue_group(const NcclApi& nccl, const Call& call, Buffers buffers, NcclComm comm, CUstream stream) {
  Group group(nccl, call, buffers, comm, stream);
  const bool is_root = call.rank == call.root;
  switch (call.pattern) {
    case Pattern::kSendReceive:  // a ring, as NCCL tests' sendrecv
      group.send(0, (call.rank + 1) % call.ranks);
      group.recv(0, (call.rank + call.ranks - 1) % call.ranks);
      break;
    case Pattern::kAllToAll:
      for (int peer = 0; peer < call.ranks; ++peer) {
        group.send(static_cast<size_t>(peer), peer);
        group.recv(static_cast<size_t>(peer), peer);
      }
      break;
    case Pattern::kGather:
      group.send(0, call.root);
      for (int peer = 0; is_root && peer < call.ranks; ++peer) group.recv(static_cast<size_t>(peer), peer);
      break;
    case Pattern::kScatter:
      for (int peer = 0; is_root && peer < call.ranks; ++peer) group.send(static_cast<size_t>(peer), peer);
      group.recv(0, call.root);
      break;
    default:
      break;
  }
  group.end();
}

}  // namespace

std::optional<Type> type_named(const std::string& name) {
  for (const TypeInfo& each : kTypes) {
    if (name == each.name || name == each.nccl_tests) return each.value;
  }
  return std::nullopt;
}

std::optional<Pattern> pattern_named(std::string name) {
  if (name.ends_with("_perf")) name.resize(name.size() - 5);
  std::replace(name.begin(), name.end(), '-', '_');
  if (name == "sendrecv") name = "send_receive";
  if (name == "alltoall") name = "all_to_all";
  return named(kPatterns, name);
}

bool carries_out(Way way, Pattern pattern) {
  const PatternInfo& about = info(pattern);
  switch (way) {
    case Way::kSymmetric:
    case Way::kEfficiency:
      return about.from == Who::kAll && about.to == Who::kAll && pattern != Pattern::kAllToAll;
    case Way::kCopyEngine:  // which move and add nothing
      return about.split && !about.reduces;
    default:
      return true;
  }
}

Shape shape_of(Pattern pattern, size_t size_bytes, Type type, int ranks) {
  const PatternInfo& about = info(pattern);
  const size_t width = info(type).bytes;
  const auto n = static_cast<size_t>(ranks);
  const size_t elements = size_bytes / width;
  if (!about.split) return {elements, elements * width, elements, elements};
  // Chunks begin at multiples of 16 bytes, as NCCL tests cut them.
  const size_t chunk = elements / n / (16 / width) * (16 / width);
  return {chunk, chunk * n * width, about.sends_all ? chunk * n : chunk, about.recv_all ? chunk * n : chunk};
}

double bus_factor(Pattern pattern, int ranks) {
  const double share = (ranks - 1) / static_cast<double>(ranks);
  if (info(pattern).split) return share;
  return pattern == Pattern::kAllReduce ? 2 * share : 1;
}

Buffers place(const Call& call, CUdeviceptr send_buffer, CUdeviceptr recv_buffer) {
  if (!call.in_place) return {send_buffer, recv_buffer};
  // The rank's own chunk is already in its place among those of all.
  const PatternInfo& about = info(call.pattern);
  const size_t own = static_cast<size_t>(call.rank) * call.shape.count * info(call.type).bytes;
  return {recv_buffer + (about.recv_all ? own : 0), recv_buffer + (about.sends_all ? own : 0)};
}

void enqueue(const NcclApi& nccl, const Call& call, Buffers buffers, NcclComm comm, CUstream stream) {
  const void* from = const_pointer(buffers.send);
  void* to = pointer(buffers.recv);
  const size_t count = call.shape.count;
  const int type = info(call.type).nccl;
  const int op = static_cast<int>(call.op);
  switch (call.pattern) {
    case Pattern::kAllReduce:
      return nccl.check(nccl.all_reduce(from, to, count, type, op, comm, stream), "ncclAllReduce", comm);
    case Pattern::kBroadcast:
      return nccl.check(nccl.broadcast(from, to, count, type, call.root, comm, stream), "ncclBroadcast", comm);
    case Pattern::kReduce:
      return nccl.check(nccl.reduce(from, to, count, type, op, call.root, comm, stream), "ncclReduce", comm);
    case Pattern::kAllGather:
      return nccl.check(nccl.all_gather(from, to, count, type, comm, stream), "ncclAllGather", comm);
    case Pattern::kReduceScatter:
      return nccl.check(nccl.reduce_scatter(from, to, count, type, op, comm, stream), "ncclReduceScatter", comm);
    case Pattern::kAllToAll:
      if (nccl.all_to_all == nullptr || call.grouped) break;
      return nccl.check(nccl.all_to_all(from, to, count, type, comm, stream), "ncclAlltoAll", comm);
    case Pattern::kGather:
      if (nccl.gather == nullptr || call.grouped) break;
      return nccl.check(nccl.gather(from, to, count, type, call.root, comm, stream), "ncclGather", comm);
    case Pattern::kScatter:
      if (nccl.scatter == nullptr || call.grouped) break;
      return nccl.check(nccl.scatter(from, to, count, type, call.root, comm, stream), "ncclScatter", comm);
    case Pattern::kSendReceive:
      break;
  }
  enqueue_group(nccl, call, buffers, comm, stream);
}

}  // namespace powerccl::bench
