// SPDX-License-Identifier: Apache-2.0
// Holds of a clock, and the clock thread that follows them: who holds or releases wakes it where that changes anything.
#pragma once
#include <stdint.h>

#include "base/basics.h"
#include "clock/clock_actuator.h"
#include "policy/per_call_policy.h"

namespace powerccl {

// All from any thread; nothing waits.
class PerCallClock {
 public:
  explicit PerCallClock(ClockActuator* actuator) : actuator_(*actuator) {}

  // What `actuator` is to follow.
  ClockPolicy* policy() { return &policy_; }
  const ClockPolicy* policy() const { return &policy_; }

  // `mhz` from now on, until released as often as held.
  void hold(uint32_t mhz, uint64_t call) {
    policy_.hold(mhz, call, monotonic_ns());
    actuator_.look();
  }
  // One hold more at whatever clock is wished for already.
  void hold_on() { policy_.hold_on(); }
  // `call` is the one whose end this is, for the CLOCK record of the reset.
  void release(uint32_t holds, uint64_t call) {
    const uint64_t now = monotonic_ns();
    if (policy_.release(holds, call, now)) actuator_.look();
  }

 private:
  PerCallPolicy policy_;
  ClockActuator& actuator_;
};

}  // namespace powerccl
