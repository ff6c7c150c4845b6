// SPDX-License-Identifier: Apache-2.0
#include "sim/clock_thread.h"

#include <algorithm>

namespace powerccl::sim {
namespace {

constexpr Time kWakeNs = 15'000;  // a sleeping thread's way to a processor, on a host with one to spare

}  // namespace

ClockThread::ClockThread(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Recorder* recorder)
    : server_(server), gpu_(gpu), policy_(policy), interval_ns_(lease.interval_ns), recorder_(recorder) {
  for (const Lease::Absence& absence : lease.absences) {
    server.engine().at(absence.begin, [this](Time) { lose_lease(); });
    server.engine().at(absence.end, [this](Time) {
      granted_ = true;
      look();
    });
  }
}

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
  if (wanted.mhz != applied_mhz_ && !granted_) {
    policy_.withheld();
  } else if (wanted.mhz != applied_mhz_) {
    const Time delay = delay_of(wanted.mhz);
    if (delay == 0) return carry_out(wanted);
    wake_in(delay);
  }
  // One that looks again when something happens needs no time to look at: ranks that wait for ever are found out.
  if (wanted.until_ns < now + ClockPolicy::kFarNs) {
    wake_in(wanted.until_ns > now ? static_cast<Time>(wanted.until_ns - now) : 0);
  }
}

// How long a clock has to wait, as clock/lease_client asks for it: one that is no rise, and not the default.
Time ClockThread::delay_of(uint32_t mhz) const {
  const bool rises = mhz == 0 || (applied_mhz_ != 0 && mhz > applied_mhz_);
  return rises || lowered_ == 0 ? 0 : std::max<Time>(0, lowered_ + interval_ns_ - server_.now());
}

// Whatever was set is undone by who granted it.
void ClockThread::lose_lease() {
  granted_ = false;
  applied_mhz_ = 0;
  server_.engine().set_locked_clocks(gpu_, 0, 0, true, server_.now(), [](Time) {});
  if (recorder_ != nullptr) recorder_->lease_lost(server_.now());
}

void ClockThread::carry_out(const ClockPolicy::Wanted& wanted) {
  busy_ = true;
  ++switches_;
  const Time begin = server_.now();
  if (wanted.mhz != 0 && (applied_mhz_ == 0 || wanted.mhz < applied_mhz_)) lowered_ = begin;
  server_.engine().set_locked_clocks(gpu_, wanted.mhz, wanted.mhz, true, begin, [this, wanted, begin](Time end) {
    busy_ = false;
    applied_mhz_ = granted_ ? wanted.mhz : 0;
    if (recorder_ != nullptr) recorder_->clock_set(wanted, begin, end);
    run();
  });
}

}  // namespace powerccl::sim
