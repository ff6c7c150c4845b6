// SPDX-License-Identifier: Apache-2.0
// The clock thread of one rank in virtual time: what clock/clock_actuator does with a thread and the driver. It wakes
// late by as much as a thread does, and a driver's call keeps it.
#ifndef POWERCCL_SIM_CLOCK_THREAD_H
#define POWERCCL_SIM_CLOCK_THREAD_H
#include <cstdint>

#include "policy/clock_policy.h"
#include "sim/recorder.h"
#include "sim/server.h"

namespace powerccl::sim {

class ClockThread {
 public:
  ClockThread(Server& server, uint32_t gpu, ClockPolicy& policy, Recorder* recorder)
      : server_(server), gpu_(gpu), policy_(policy), recorder_(recorder) {}

  void look();  // something happened that the policy was told of

  uint64_t switches() const { return switches_; }

 private:
  void wake_in(Time ns);
  void run();
  void carry_out(const ClockPolicy::Wanted& wanted);

  Server& server_;
  uint32_t gpu_;
  ClockPolicy& policy_;
  Recorder* recorder_;  // null where nothing is recorded
  physics::TimerId timer_ = 0;
  Time wakes_at_ = 0;
  uint32_t applied_mhz_ = 0;
  uint64_t switches_ = 0;
  bool busy_ = false;  // in the driver
};

}  // namespace powerccl::sim
#endif
