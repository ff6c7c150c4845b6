// SPDX-License-Identifier: Apache-2.0
// One GPU's clock thread: runs a ClockFollower whenever something happens or is due. A device call takes milliseconds,
// and the threads that tell the policy what happens are NCCL's and CUDA's. They wake this thread, never wait for it and
// never call the driver.
#pragma once
#include <pthread.h>
#include <stdint.h>

#include <atomic>

#include "base/basics.h"
#include "clock/clock_follower.h"
#include "policy/per_call_policy.h"

namespace powerccl {

class ClockActuator {
 public:
  ClockActuator() = default;
  ClockActuator(const ClockActuator&) = delete;
  ClockActuator& operator=(const ClockActuator&) = delete;

  // Starts the thread, which follows `policy`. False if there can be none. `debug`: also say each request.
  bool start(ClockClient* client, ClockPolicy* policy, Trace* trace, bool debug);

  // The policy has received something new: the clock thread asks it again.
  void look();

  bool failed() const { return follower_.failed(); }

  // Lets the policy rest, has the clock reset if it is set, and waits for that, at most `timeout_ns`. False: still set.
  bool settle(uint64_t timeout_ns);

  // settle(), then ends the thread. A thread that does not settle in time ends later; stop again to wait for it.
  bool stop(uint64_t timeout_ns);

  // Of a policy that was started.
  void record_policy() { follower_.record_policy(); }
  uint64_t switches() const { return follower_.switches(); }

 private:
  static void* thread_main(void* self);
  void work();

  ClockFollower follower_;
  ClockPolicy* policy_ = nullptr;
  pthread_t thread_ = {};
  bool started_ = false;

  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> asleep_{false}, stopping_{false};
  std::atomic<bool> settled_{true};  // false while a thread waits in settle()
  std::atomic<uint32_t> settled_bell_{0};
};

// Holds of a clock, and the clock thread that follows them: who holds or releases wakes it where that changes anything.
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
