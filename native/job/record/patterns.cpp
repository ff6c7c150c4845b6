// SPDX-License-Identifier: Apache-2.0
#include "record/patterns.h"

namespace powerccl {
namespace {
constexpr const char* kNames[POWERCCL_PATTERNS] = {"all_reduce", "broadcast",      "reduce",
                                                   "all_gather", "reduce_scatter", "send_receive",
                                                   "scatter",    "gather",         "all_to_all"};
}

const char* pattern_name(uint8_t pattern) {
  return pattern < POWERCCL_PATTERNS ? kNames[pattern] : nullptr;
}

uint8_t pattern_by_name(std::string_view name) {
  for (uint8_t pattern = 0; pattern < POWERCCL_PATTERNS; ++pattern) {
    if (name == kNames[pattern]) return pattern;
  }
  return POWERCCL_PATTERN_UNKNOWN;
}

Classified classify(const PointToPoint& parts, uint32_t nranks) {
  // Bytes to or from all ranks, made whole where the rank's own part was left out.
  auto whole = [nranks](uint64_t bytes, uint32_t messages) {
    return messages == nranks ? bytes : bytes / messages * nranks;
  };
  auto all = [nranks](uint32_t messages) { return messages == nranks || (messages + 1 == nranks && nranks > 2); };
  if (nranks >= 2) {
    if (all(parts.sends) && parts.sends == parts.receives) {
      return {POWERCCL_ALL_TO_ALL, whole(parts.sent_bytes, parts.sends)};
    }
    if (all(parts.sends) && parts.receives <= 1) return {POWERCCL_SCATTER, whole(parts.sent_bytes, parts.sends)};
    if (all(parts.receives) && parts.sends <= 1) return {POWERCCL_GATHER, whole(parts.received_bytes, parts.receives)};
  }
  return {POWERCCL_SEND_RECEIVE, parts.sent_bytes > parts.received_bytes ? parts.sent_bytes : parts.received_bytes};
}

}  // namespace powerccl
