// SPDX-License-Identifier: Apache-2.0
// Communication patterns: their names, and which one a group of sends and receives amounts to.
#pragma once
#include <stdint.h>

#include <string_view>

#include "abi/trace.h"

namespace powerccl {

// "all_reduce" and so on; null for POWERCCL_PATTERN_UNKNOWN.
const char* pattern_name(uint8_t pattern);
// POWERCCL_PATTERN_UNKNOWN if there is no such pattern.
uint8_t pattern_by_name(std::string_view name);

// Whether NCCL tests' `size` is the per-rank message times the number of ranks.
constexpr bool size_counts_ranks(uint8_t pattern) {
  return pattern == POWERCCL_ALL_GATHER || pattern == POWERCCL_REDUCE_SCATTER || pattern == POWERCCL_SCATTER ||
         pattern == POWERCCL_GATHER || pattern == POWERCCL_ALL_TO_ALL;
}

// NCCL tests' `size` of a collective of so many ranks.
constexpr uint64_t total_bytes(uint8_t pattern, uint64_t message_bytes, int ranks) {
  return message_bytes * (size_counts_ranks(pattern) ? static_cast<uint64_t>(ranks) : 1);
}

// What one rank put into one group on one communicator.
struct PointToPoint {
  uint32_t sends = 0, receives = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;
};

struct Classified {
  uint8_t pattern;
  uint64_t bytes;  // NCCL tests' `size`
};

// Decided from the counts alone, because the peers are not known when the call is made. A rank that exchanges with all
// `nranks` ranks, itself included or left out, takes part in an all-to-all. One that sends to all and receives at most
// one is a scatter's root. One that receives from all and sends at most one is a gather's root.
// A scatter's other ranks see one receive, a gather's one send: to them it is send-receive, and their `size` is the
// message's. Of two ranks, one send and one receive are a send-receive, never an all-to-all without its local part.
Classified classify(const PointToPoint& parts, uint32_t nranks);

// log2 of the size, 0 for nothing: operations of one class are alike enough to learn from each other.
constexpr uint32_t size_class(uint64_t bytes) {
  return bytes == 0 ? 0 : 64 - __builtin_clzll(bytes);
}
constexpr uint32_t kSizeClasses = 65;

// Calls of one kind do the same in each iteration.
inline uint32_t call_kind(uint64_t communicator, uint8_t pattern, uint64_t size) {
  const uint64_t kind = (communicator ^ uint64_t{pattern} << 56) * 0x9e3779b97f4a7c15u ^ size * 0xc2b2ae3d27d4eb4fu;
  return static_cast<uint32_t>(kind ^ kind >> 32);
}

}  // namespace powerccl
