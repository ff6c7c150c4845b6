// SPDX-License-Identifier: Apache-2.0
#include "sim/clock_thread.h"

namespace powerccl::sim {
namespace {

constexpr Time kWakeNs = 15'000;  // a sleeping thread's way to a processor, on a host with one to spare

}  // namespace

void ClockThread::look() {
  if (!busy_) wake_in(kWakeNs);
}

// The earlier of this and what was planned.
void ClockThread::wake_in(Time ns) {
  const Time at = server_.now() + ns;
  if (timer_ != 0 && wakes_at_ <= at) return;
  if (timer_ != 0) server_.engine().cancel_timer(timer_);
  wakes_at_ = at;
  timer_ = server_.engine().at(at, [this](Time) {
    timer_ = 0;
    run();
  });
}

// Does what the policy wants now.
void ClockThread::run() {
  if (busy_) return;
  const auto now = static_cast<uint64_t>(server_.now());
  const ClockPolicy::Wanted wanted = policy_.wanted(now);
  if (policy_.wants_sample()) policy_.sampled(server_.clock_mhz(gpu_));
  if (wanted.mhz != applied_mhz_) return carry_out(wanted);
  // One that looks again when something happens needs no time to look at: ranks that wait for ever are found out.
  if (wanted.until_ns < now + ClockPolicy::kFarNs) {
    wake_in(wanted.until_ns > now ? static_cast<Time>(wanted.until_ns - now) : 0);
  }
}

void ClockThread::carry_out(const ClockPolicy::Wanted& wanted) {
  busy_ = true;
  ++switches_;
  const Time begin = server_.now();
  server_.engine().set_locked_clocks(gpu_, wanted.mhz, wanted.mhz, true, begin, [this, wanted, begin](Time end) {
    busy_ = false;
    applied_mhz_ = wanted.mhz;
    if (recorder_ != nullptr) recorder_->clock_set(wanted, begin, end);
    run();
  });
}

}  // namespace powerccl::sim
