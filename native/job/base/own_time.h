// SPDX-License-Identifier: Apache-2.0
// CPU time that PowerCCL's own code takes of the job's threads. A trace's header has it, since users ask what recording
// costs. Two starts of a job that waits for its host differ by more than that.
#pragma once
#include <atomic>

#include "base/basics.h"

namespace powerccl {

enum class OwnWork : uint32_t { kCalls, kWaits, kLaunches };  // as own_ns of abi/trace.h
constexpr uint32_t kOwnWorks = 3;

inline constinit std::atomic<uint64_t> g_own_ns[kOwnWorks] = {};

inline std::atomic<uint64_t>* own_ns_of(OwnWork work) {
  return &g_own_ns[static_cast<uint32_t>(work)];
}
inline void add_own_ns(OwnWork work, uint64_t ns) {
  own_ns_of(work)->fetch_add(ns, std::memory_order_relaxed);
}

// As long as this lives, the thread is ours, which is added to a sum. Two of one sum that exist together on a thread
// would count twice.
class OwnTime {
 public:
  // No part of our work takes so long. Where one did, the thread lost its core, or the GPU's queue was full: the job
  // would have waited for that anyway.
  static constexpr uint64_t kMostNs = 50000;

  explicit OwnTime(std::atomic<uint64_t>* sum_ns) : sum_ns_(sum_ns), began_ns_(monotonic_ns()) {}
  explicit OwnTime(OwnWork work) : OwnTime(own_ns_of(work)) {}
  ~OwnTime() {
    const uint64_t took_ns = monotonic_ns() - began_ns_;
    sum_ns_->fetch_add(took_ns < kMostNs ? took_ns : kMostNs, std::memory_order_relaxed);
  }
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

 private:
  std::atomic<uint64_t>* sum_ns_;
  uint64_t began_ns_;
};

}  // namespace powerccl
