// SPDX-License-Identifier: Apache-2.0
// The nine communication patterns: how NCCL tests' `size` becomes counts and buffers, bus bandwidth, and the NCCL
// calls.
#ifndef POWERCCL_BENCH_PATTERN_H
#define POWERCCL_BENCH_PATTERN_H
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "bench/datatype.h"
#include "bench/nccl_api.h"

namespace powerccl::bench {

enum class Pattern : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kSendReceive,
  kScatter,
  kGather,
  kAllToAll,
};
inline constexpr size_t kPatterns = 9;

struct PatternInfo {
  Pattern pattern;
  const char* name;
  bool has_root;
  bool reduces;
  bool split;     // size covers one chunk per rank; `count` is one chunk's
  bool in_place;  // an in-place form exists
};

const std::array<PatternInfo, kPatterns>& patterns();
const PatternInfo& info(Pattern pattern);
// Ours, and NCCL tests' own spellings (sendrecv, alltoall, all_reduce_perf, ...).
std::optional<Pattern> pattern_named(std::string name);

struct Shape {
  size_t count;       // NCCL tests' `count`: elements of one chunk for split patterns, of the message otherwise
  size_t size_bytes;  // NCCL tests' `size`, rounded down to whole, 16-byte aligned chunks
  size_t send_count;  // elements of a rank's send buffer (of the root's, for rooted patterns)
  size_t recv_count;
};
Shape shape_of(Pattern pattern, size_t size_bytes, Type type, int ranks);

// Multiply algorithm bandwidth by this for bus bandwidth (NCCL tests' doc/PERFORMANCE.md).
double bus_factor(Pattern pattern, int ranks);

struct Call {
  Pattern pattern;
  Type type;
  Op op;
  int root;
  int ranks;
  int rank;
  Shape shape;
  bool in_place;
  bool grouped;  // all-to-all, gather, scatter from send/recv even where NCCL has the call
};
// Where a rank's send and receive data begin inside its two buffers; in place both lie in `recv_buffer`.
struct Buffers {
  CUdeviceptr send;
  CUdeviceptr recv;
};
Buffers place(const Call& call, CUdeviceptr send_buffer, CUdeviceptr recv_buffer);

// Makes the call(s) of one operation on `stream`. Failure as NCCL reports it.
void enqueue(const NcclApi& nccl, const Call& call, Buffers buffers, NcclComm comm, CUstream stream);

}  // namespace powerccl::bench
#endif
