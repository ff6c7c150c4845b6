// SPDX-License-Identifier: Apache-2.0
// The clock of one rank's GPU in virtual time. It carries out what a job's clock thread (clock/clock_follower.h) asks
// for. It runs that code whenever the thread would wake, as late as a thread does.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "clock/clock_follower.h"
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

class ClockDriver final : public ClockClient {
 public:
  ClockDriver(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Trace& trace);

  void look();    // the policy has received something new
  void settle();  // the job is over

  uint64_t switches() const { return follower_.switches(); }
  Time settled_at() const { return std::max(server_.now(), busy_until_); }  // the last call is over
  std::optional<Time> first_set() const { return first_set_; }  // when a clock was set that is not the default

 private:
  // ClockClient. A driver's call keeps the thread: its time is ahead of the server's until the call is over.
  uint64_t now_ns() const override { return static_cast<uint64_t>(std::max(server_.now(), busy_until_)); }
  int set(uint32_t mhz) override;
  int reset() override;
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override;
  uint64_t grant() const override { return granted_ ? grants_ : 0; }
  uint64_t delay_ns(uint32_t mhz) const override { return limit_.delay_ns(mhz, now_ns(), interval_ns_); }
  bool dry() const override { return false; }

  void lock(uint32_t mhz);
  void wake_at(Time at);
  void run();

  Server& server_;
  uint32_t gpu_;
  ClockPolicy& policy_;
  ClockFollower follower_;
  uint64_t interval_ns_;
  LoweringLimit limit_;
  physics::TimerId timer_ = 0;
  Time wakes_at_ = 0, busy_until_ = 0;
  uint64_t grants_ = 1;
  bool granted_ = true;
  std::optional<Time> first_set_;
};

}  // namespace powerccl::sim
