// SPDX-License-Identifier: Apache-2.0
// The clock thread of one rank in virtual time: what clock/clock_actuator does with a thread and the driver. It wakes
// late by as much as a thread does, and a driver's call keeps it.
#ifndef POWERCCL_SIM_CLOCK_THREAD_H
#define POWERCCL_SIM_CLOCK_THREAD_H
#include <cstdint>
#include <vector>

#include "policy/clock_policy.h"
#include "sim/recorder.h"
#include "sim/server.h"

namespace powerccl::sim {

// The lease that a daemon grants on a clock. Without one the clock is at its default, and wishes wait for the next one.
struct Lease {
  struct Absence {
    Time begin, end;
  };
  Time interval_ns = 0;  // the least time from one clock to a lower one
  std::vector<Absence> absences;
};

class ClockThread {
 public:
  ClockThread(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Recorder* recorder);

  void look();  // something happened that the policy was told of

  uint64_t switches() const { return switches_; }

 private:
  void wake_in(Time ns);
  void run();
  void carry_out(const ClockPolicy::Wanted& wanted);
  void lose_lease();
  Time delay_of(uint32_t mhz) const;

  Server& server_;
  uint32_t gpu_;
  ClockPolicy& policy_;
  Time interval_ns_;
  Recorder* recorder_;  // null where nothing is recorded
  physics::TimerId timer_ = 0;
  Time wakes_at_ = 0;
  uint32_t applied_mhz_ = 0;
  Time lowered_ = 0;  // when a clock was lowered last; 0: never
  uint64_t switches_ = 0;
  bool granted_ = true;
  bool busy_ = false;  // in the driver
};

}  // namespace powerccl::sim
#endif
