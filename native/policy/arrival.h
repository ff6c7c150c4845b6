// SPDX-License-Identifier: Apache-2.0
// When a clock that was asked for is there: read now and then behind the call, often enough to tell and not oftener,
// for reading may cost a request of which a daemon takes so many a second, and may wait for another GPU's change.
#ifndef POWERCCL_POLICY_ARRIVAL_H
#define POWERCCL_POLICY_ARRIVAL_H
#include <stdint.h>

namespace powerccl {

// The clock thread's own. Times in ns of CLOCK_MONOTONIC.
class Arrival {
 public:
  // So long after the call's end it was not there yet, and then it was; both 0: not seen.
  struct Seen {
    uint64_t least_ns = 0, most_ns = 0;
    bool precise = false;  // these are close to each other
  };

  // Whether a GPU at `now_mhz` can be seen to arrive at `to_mhz`: a clock goes up and down by itself, under a power
  // limit by a fifth and more, and a lock that is higher does not keep it from that.
  static bool visible(uint32_t now_mhz, uint32_t to_mhz) { return to_mhz < kFar * now_mhz; }
  static bool there(uint32_t now_mhz, uint32_t to_mhz) {
    const uint32_t off = now_mhz > to_mhz ? now_mhz - to_mhz : to_mhz - now_mhz;
    return 16 * uint64_t{off} <= to_mhz;
  }

  // The device call that asks for the clock ended then.
  void watch(uint64_t end_ns);
  void stop() { since_ns_ = 0; }
  bool watching() const { return since_ns_ != 0; }
  uint64_t look_at_ns() const { return look_ns_; }

  // A look that began and ended then, and whether the clock was there. What there is to tell of it.
  Seen looked(uint64_t begin_ns, uint64_t end_ns, bool there);

 private:
  static constexpr uint64_t kFirstNs = 20000u, kMostNs = 400000000u;
  // Looks behind each other, as parts of the time since the call: at first, and once it is about known.
  static constexpr uint64_t kRoughly = 4, kFinely = 32;
  static constexpr double kBefore = 0.7;  // of what it took the last time
  static constexpr double kFar = 0.7;
  static constexpr uint64_t kPrecise = 8, kPreciseNs = 100000u;

  uint64_t since_ns_ = 0, look_ns_ = 0;
  uint64_t missed_ns_ = 0;    // when it was not there yet
  uint64_t expected_ns_ = 0;  // what it took the last time; 0: not known
};

}  // namespace powerccl
#endif
