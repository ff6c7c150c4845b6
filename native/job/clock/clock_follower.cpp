// SPDX-License-Identifier: Apache-2.0
#include "clock/clock_follower.h"

#include "base/log.h"
#include "record/records.h"

namespace powerccl {
namespace {

// The policy's state is recorded so often while the job runs, for tools that watch it and for a job that is killed. It
// is recorded once more at the job's end.
constexpr uint64_t kRecordPolicyEveryNs = 10000000000u;

}  // namespace

void ClockFollower::begin(ClockClient* client, ClockPolicy* policy, Trace* trace, bool debug) {
  client_ = client;
  policy_ = policy;
  trace_ = trace;
  debug_ = debug;
  failed_.store(false);
  grant_ = client->grant();
}

uint64_t ClockFollower::follow() {
  if (!failed()) return tend(ask_policy());
  reset(false);
  return tend(ClockPolicy::kFarNs);
}

uint64_t ClockFollower::tend(uint64_t idle_ns) {
  if (read_at_ns_ != 0) {
    const uint64_t now = client_->now_ns();
    if (now >= read_at_ns_) {
      read_back();
    } else if (read_at_ns_ - now < idle_ns) {
      idle_ns = read_at_ns_ - now;
    }
  }
  const uint64_t tick_ns = client_->tick();
  if (grant_changed()) return 0;
  return tick_ns < idle_ns ? tick_ns : idle_ns;
}

void ClockFollower::reset(bool again) {
  if (applied_mhz_.load(std::memory_order_relaxed) == 0 && !(again && reset_refused_)) return;
  carry_out(0, cause_of_reset(), 0);
}

void ClockFollower::end() {
  read_back();
  client_->close();
}

// Because of which call the default clock is wanted, as far as the policy says.
ClockFollower::Cause ClockFollower::cause_of_reset() {
  const uint64_t now = client_->now_ns();
  // A policy whose clocks cannot be set is no longer asked: it would take iterations at the default clock for managed
  // ones.
  const ClockPolicy::Wanted wanted = failed() ? ClockPolicy::Wanted() : policy_->wanted(now);
  if (wanted.mhz != 0 || wanted.asked_ns == 0) return {0, now};
  return {wanted.call, wanted.asked_ns};
}

// Returns how long what the policy wants holds, in ns.
uint64_t ClockFollower::ask_policy() {
  const uint64_t now = client_->now_ns();
  const ClockPolicy::Wanted wanted = policy_->wanted(now);
  const uint64_t holds_ns = wanted.until_ns > now ? wanted.until_ns - now : 0;
  if (now - recorded_ns_ >= kRecordPolicyEveryNs) {
    if (recorded_ns_ != 0 && policy_->learns()) record_policy();
    recorded_ns_ = now;
  }
  ClockPolicy::Reading reading;
  if (policy_->wants_sample() && client_->can_read() && client_->read(&reading) == 0) policy_->sampled(reading);
  const uint64_t unseen = wanted.wish > taken_ ? wanted.wish - taken_ : 0;
  const bool waits_for_grant = put_off_ && wanted.mhz == put_off_mhz_ && unseen == 0;
  if (wanted.mhz != applied_mhz_.load(std::memory_order_relaxed) && !waits_for_grant) {
    const uint64_t delay_ns = wanted.mhz != 0 ? client_->delay_ns(wanted.mhz) : 0;
    if (delay_ns > 0) return delay_ns < holds_ns ? delay_ns : holds_ns;
    put_off_mhz_ = wanted.mhz;
    carry_out(wanted.mhz, {wanted.call, wanted.asked_ns != 0 ? wanted.asked_ns : now}, unseen > 0 ? unseen - 1 : 0);
  }
  if (put_off_ && wanted.mhz != 0) policy_->withheld();
  if (unseen > 0) taken_ = wanted.wish;
  const uint64_t end_ns = client_->now_ns();
  return wanted.until_ns > end_ns ? wanted.until_ns - end_ns : 0;
}

void ClockFollower::record_policy() {
  const ClockPolicy::State state = policy_->state();
  powerccl_trace_record record = new_record(POWERCCL_REC_BUDGET);
  auto& budget = record.budget;
  budget.time_ns = client_->now_ns();
  budget.calls = state.period;
  budget.iterations = static_cast<uint32_t>(state.iterations);
  budget.managed = static_cast<uint32_t>(state.managed);
  budget.length_us = static_cast<uint32_t>(state.length_ns / 1000);
  budget.judged = state.judged;
  budget.clock_mhz = state.clock_mhz;
  if (state.judged) {
    budget.slowdown_ppm = static_cast<int32_t>(state.slowdown.estimate * 1e6);
    budget.low_ppm = static_cast<int32_t>(state.slowdown.low * 1e6);
    budget.high_ppm = static_cast<int32_t>(state.slowdown.high * 1e6);
  }
  trace_->append(record);
}

bool ClockFollower::grant_changed() {
  const uint64_t grant = client_->grant();
  if (grant == grant_) return false;
  if (grant == 0) trace_->append(note_record("clock lease lost: GPU at its default clock", client_->now_ns()));
  grant_ = grant;
  if (grant != 0) put_off_ = false;
  // Whatever was set has been undone, and the clock now is not what came of it.
  applied_mhz_.store(0, std::memory_order_release);
  if (read_at_ns_ != 0) trace_->append(unread_);
  read_at_ns_ = 0;
  return true;
}

void ClockFollower::read_back() {
  if (read_at_ns_ == 0) return;
  read_at_ns_ = 0;
  ClockPolicy::Reading reading;
  if (client_->read(&reading) == 0) unread_.clock.read_back_mhz = reading.mhz;
  trace_->append(unread_);
}

void ClockFollower::carry_out(uint32_t mhz, const Cause& cause, uint64_t coalesced) {
  read_back();
  powerccl_trace_record record = new_record(POWERCCL_REC_CLOCK, 0, client_->dry() ? POWERCCL_FLAG_DRY : 0u);
  record.clock.call_id = cause.call_id;
  record.clock.asked_ns = cause.asked_ns;
  record.clock.min_mhz = record.clock.max_mhz = mhz;
  record.clock.coalesced = static_cast<uint32_t>(coalesced);
  record.clock.begin_ns = client_->now_ns();
  // A set that failed may have had an effect all the same, so from here on it counts as set.
  if (mhz != 0) applied_mhz_.store(mhz, std::memory_order_release);
  const int result = mhz != 0 ? client_->set(mhz) : client_->reset();
  record.clock.end_ns = client_->now_ns();
  record.clock.result = result;
  if (result == 0 && mhz != 0 && client_->can_read() && record.clock.end_ns >= read_again_ns_) {
    read_again_ns_ = record.clock.end_ns + kReadEveryNs;
    unread_ = record;
    read_at_ns_ = record.clock.end_ns + kArrivalNs;
  } else {
    trace_->append(record);
  }
  if (result != kClockNotNow) switches_.fetch_add(1, std::memory_order_relaxed);
  if (debug_) {
    say(nullptr, "clock %s %u MHz: code %d, %llu us", mhz != 0 ? "set to" : "reset from",
        mhz != 0 ? mhz : applied_mhz_.load(std::memory_order_relaxed), result,
        static_cast<unsigned long long>((record.clock.end_ns - record.clock.begin_ns) / 1000));
  }
  if (result == kClockNotNow) {
    // The granter undoes the clock, a reset that was refused before included.
    applied_mhz_.store(0, std::memory_order_release);
    reset_refused_.store(false, std::memory_order_release);
    put_off_ = true;
    return;
  }
  put_off_ = false;
  if (mhz == 0) {
    // Refused or not, it has been tried. A refused reset leaves the client's mark, so that the agent tries again.
    applied_mhz_.store(0, std::memory_order_release);
    reset_refused_.store(result != 0, std::memory_order_release);
  }
  if (result == 0) return;
  if (!failed_.exchange(true, std::memory_order_seq_cst)) {
    const char* hint = nullptr;
    const char* text = client_->explain(result, &hint);
    say(hint, "the clock cannot be %s (code %d%s%s); PowerCCL sets no more clocks in this process",
        mhz != 0 ? "set" : "reset", result, text != nullptr ? ": " : "", text != nullptr ? text : "");
    const char* note = mhz != 0 ? "clock set failed: disarmed to observe" : "clock reset failed: disarmed to observe";
    trace_->append(note_record(note, client_->now_ns()));
  }
  if (mhz != 0) carry_out(0, cause, 0);
}

}  // namespace powerccl
