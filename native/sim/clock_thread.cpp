// SPDX-License-Identifier: Apache-2.0
#include "sim/clock_thread.h"

#include <algorithm>

namespace powerccl::sim {
namespace {

constexpr Time kWakeNs = 15'000;  // a sleeping thread's way to a processor, on a host with one to spare
constexpr Time kLongNs = 3'600'000'000'000;

}  // namespace

void ClockThread::look() {
  if (!busy_) wake_in(kWakeNs);
}

void ClockThread::hold(uint32_t mhz) {
  wished_mhz_ = mhz;
  ++holds_;
  look();
}

void ClockThread::release() {
  if (holds_ == 0) return;
  --holds_;
  if (holds_ == 0) look();
}

// The earlier of this and what was planned.
void ClockThread::wake_in(Time ns) {
  const Time at = server_.now() + std::clamp<Time>(ns, 0, kLongNs);
  if (timer_ != 0 && wakes_at_ <= at) return;
  if (timer_ != 0) server_.engine().cancel_timer(timer_);
  wakes_at_ = at;
  timer_ = server_.engine().at(at, [this](Time) {
    timer_ = 0;
    run();
  });
}

void ClockThread::run() {
  if (busy_) return;
  if (policy_ != nullptr) {
    const Time ns = follow();
    if (!busy_) wake_in(ns);
    return;
  }
  const uint32_t wanted = holds_ > 0 ? wished_mhz_ : 0;
  if (wanted != applied_mhz_) carry_out(wanted);
}

// Does what the policy wants now. Returns how long that holds.
Time ClockThread::follow() {
  const auto now = static_cast<uint64_t>(server_.now());
  const ClockPolicy::Wanted wanted = policy_->wanted(now);
  if (policy_->wants_sample()) policy_->sampled(server_.clock_mhz(gpu_));
  const Time holds = wanted.until_ns > now ? static_cast<Time>(std::min<uint64_t>(wanted.until_ns - now, kLongNs)) : 0;
  if (wanted.mhz != applied_mhz_) carry_out(wanted.mhz);
  return holds;
}

void ClockThread::carry_out(uint32_t mhz) {
  busy_ = true;
  ++switches_;
  server_.engine().set_locked_clocks(gpu_, mhz, mhz, true, server_.now(), [this, mhz](Time) {
    busy_ = false;
    applied_mhz_ = mhz;
    run();
  });
}

}  // namespace powerccl::sim
