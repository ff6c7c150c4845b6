// SPDX-License-Identifier: Apache-2.0
// What our own code takes of the job's threads. A trace's header tells it, since a user asks what recording costs, and
// two starts of a job that waits for its host differ by more than that.
#ifndef POWERCCL_BASE_OWN_TIME_H
#define POWERCCL_BASE_OWN_TIME_H
#include <atomic>

#include "base/kernel_clock.h"

namespace powerccl {

enum class OwnWork : uint32_t { kCalls, kWaits, kLaunches };  // as own_ns of abi/trace.h
constexpr uint32_t kOwnWorks = 3;

inline constinit std::atomic<uint64_t> g_own_ns[kOwnWorks] = {};

inline void add_own_ns(OwnWork work, uint64_t ns) {
  g_own_ns[static_cast<uint32_t>(work)].fetch_add(ns, std::memory_order_relaxed);
}

// As long as this lives, the thread is ours. Two that live at once on a thread would count twice.
class OwnTime {
 public:
  // No part of our work takes so long. Where one did, the thread lost its core, or the GPU's queue was full: the job
  // would have waited for that by itself.
  static constexpr uint64_t kMostNs = 50000;

  explicit OwnTime(OwnWork work) : work_(work), began_ns_(monotonic_ns()) {}
  ~OwnTime() {
    const uint64_t took_ns = monotonic_ns() - began_ns_;
    add_own_ns(work_, took_ns < kMostNs ? took_ns : kMostNs);
  }
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

 private:
  OwnWork work_;
  uint64_t began_ns_;
};

}  // namespace powerccl
#endif
