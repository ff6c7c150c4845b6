// SPDX-License-Identifier: Apache-2.0
// The offset of the GPU's globaltimer to the host's CLOCK_MONOTONIC, learnt from events that carry both times.
#pragma once
#include <stdint.h>

#include "base/basics.h"

namespace powerccl {

// The host sees an event some time after it happened, never before, so the least difference seen is nearest to the
// truth (lower envelope). The two clocks drift, so an old least difference is let rise by the drift allowed for.
class GpuClock {
 public:
  static constexpr int64_t kDriftPartsPerMillion = 20;

  void observe(uint64_t gpu_ns, uint64_t host_seen_ns) {
    SpinGuard guard(lock_);
    const int64_t difference = static_cast<int64_t>(host_seen_ns - gpu_ns);
    const int64_t risen = risen_at(host_seen_ns);
    if (!known_ || difference < risen) {
      offset_ns_ = difference;
      learnt_ns_ = host_seen_ns;
      known_ = true;
    }
  }

  bool known() {
    SpinGuard guard(lock_);
    return known_;
  }

  // CLOCK_MONOTONIC minus globaltimer, as of `host_ns`. 0 if nothing was observed yet.
  int64_t offset_ns(uint64_t host_ns) {
    SpinGuard guard(lock_);
    return known_ ? risen_at(host_ns) : 0;
  }

  // A time of the GPU on CLOCK_MONOTONIC, as of `host_ns`, when it was learnt of.
  uint64_t host_ns(uint64_t gpu_ns, uint64_t host_ns) { return gpu_ns + static_cast<uint64_t>(offset_ns(host_ns)); }

 private:
  int64_t risen_at(uint64_t host_ns) const {
    if (host_ns <= learnt_ns_) return offset_ns_;
    return offset_ns_ + static_cast<int64_t>(host_ns - learnt_ns_) / 1000000 * kDriftPartsPerMillion;
  }

  SpinLock lock_;
  bool known_ = false;
  int64_t offset_ns_ = 0;
  uint64_t learnt_ns_ = 0;
};

}  // namespace powerccl
