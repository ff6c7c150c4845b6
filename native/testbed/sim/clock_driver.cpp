// SPDX-License-Identifier: Apache-2.0
#include "sim/clock_driver.h"

namespace powerccl::sim {
namespace {

constexpr Time kWakeNs = 15'000;  // a sleeping thread's way to a processor, on a host with one to spare

}  // namespace

ClockDriver::ClockDriver(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Trace& trace)
    : server_(server), gpu_(gpu), policy_(policy), interval_ns_(static_cast<uint64_t>(lease.interval_ns)) {
  follower_.begin(this, &policy, &trace, false);
  for (const Lease::Absence& absence : lease.absences) {
    server.engine().at(absence.begin, [this](Time) {
      granted_ = false;
      lock(0);  // the daemon undoes what was set
      look();
    });
    server.engine().at(absence.end, [this](Time) {
      granted_ = true;
      ++grants_;
      look();
    });
  }
}

void ClockDriver::look() {
  wake_at(server_.now() < busy_until_ ? busy_until_ : server_.now() + kWakeNs);
}

void ClockDriver::settle() {
  policy_.rest(now_ns());
  follower_.reset(true);
  if (policy_.learns()) follower_.record_policy();
  follower_.end();
}

// The earlier of this and what was planned.
void ClockDriver::wake_at(Time at) {
  if (timer_ != 0 && wakes_at_ <= at) return;
  server_.engine().cancel_timer(timer_);
  wakes_at_ = at;
  timer_ = server_.engine().at(at, [this](Time) {
    timer_ = 0;
    run();
  });
}

void ClockDriver::run() {
  const uint64_t idle_ns = follower_.follow();
  // What has nothing to do until something happens plans no time: ranks that wait for ever are found out.
  if (idle_ns < ClockPolicy::kFarNs / 2) wake_at(static_cast<Time>(now_ns() + idle_ns));
}

void ClockDriver::lock(uint32_t mhz) {
  if (mhz != 0 && !first_set_) first_set_ = server_.now();
  busy_until_ = server_.engine().set_locked_clocks(gpu_, mhz, mhz, true, server_.now(), [](Time) {});
}

int ClockDriver::set(uint32_t mhz) {
  if (!granted_) return kClockNotNow;
  limit_.asked(mhz, now_ns());
  lock(mhz);
  return 0;
}

int ClockDriver::reset() {
  return granted_ ? set(0) : 0;  // else undone with the lease
}

int ClockDriver::read(ClockPolicy::Reading* reading) {
  *reading = server_.reading(gpu_);
  return 0;
}

}  // namespace powerccl::sim
