// SPDX-License-Identifier: Apache-2.0
#include "clock/clock_actuator.h"

#include "base/log.h"
#include "base/own_thread.h"
#include "clock/budget_record.h"

namespace powerccl {

bool ClockActuator::start(const ClockClient& client, ClockPolicy* policy, TraceWriter* trace, bool debug) {
  policy_ = policy;
  client_ = client;
  trace_ = trace;
  debug_ = debug;
  stopping_.store(false);
  failed_.store(false);
  grant_ = client_.grant != nullptr ? client_.grant(client_.self) : 0;
  started_ = start_thread(&thread_, "powerccl-clock", thread_main, this) == 0;
  if (!started_ && client_.close != nullptr) client_.close(client_.self);
  return started_;
}

void ClockActuator::look() {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) futex_wake_all(&bell_);
}

bool ClockActuator::settle(uint64_t timeout_ns) {
  if (!started_) return true;
  const uint64_t deadline = monotonic_ns() + timeout_ns;
  policy_->rest(monotonic_ns());
  settled_.store(false, std::memory_order_seq_cst);
  look();
  while (!settled_.load(std::memory_order_acquire)) {
    const uint32_t seen = settled_bell_.load(std::memory_order_acquire);
    if (settled_.load(std::memory_order_acquire)) break;
    const uint64_t now = monotonic_ns();
    if (now >= deadline) break;
    futex_wait(&settled_bell_, seen, deadline - now);
  }
  return applied_mhz_.load(std::memory_order_acquire) == 0 && !reset_refused_.load(std::memory_order_acquire);
}

bool ClockActuator::stop(uint64_t timeout_ns) {
  if (!started_) return true;
  const bool reset = settle(timeout_ns);
  stopping_.store(true, std::memory_order_seq_cst);
  look();
  // A thread stuck in the driver is left to itself: the process must be able to end.
  if (!settled_.load(std::memory_order_acquire)) return false;
  pthread_join(thread_, nullptr);
  started_ = false;
  return reset;
}

void* ClockActuator::thread_main(void* self) {
  static_cast<ClockActuator*>(self)->work();
  return nullptr;
}

// Because of which call the default clock is wanted, as far as the policy says.
ClockActuator::Cause ClockActuator::cause_of_reset() {
  const uint64_t now = monotonic_ns();
  // A policy whose clocks cannot be set is no longer asked: it would take iterations at the default clock for managed
  // ones.
  const ClockPolicy::Wanted wanted = failed() ? ClockPolicy::Wanted() : policy_->wanted(now);
  if (wanted.mhz != 0 || wanted.asked_ns == 0) return {0, now};
  return {wanted.call, wanted.asked_ns};
}

void ClockActuator::work() {
  constexpr uint64_t kLongSleepNs = 3600ull * 1000000000u;
  // The first wish is there already, perhaps, and the grant that it needs is not asked for yet.
  if (client_.tick != nullptr) {
    client_.tick(client_.self);
    grant_changed();
  }
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_seq_cst);
    const bool stopping = stopping_.load(std::memory_order_seq_cst);
    const uint32_t applied = applied_mhz_.load(std::memory_order_relaxed);
    uint64_t sleep_ns = kLongSleepNs;
    const bool settling = !settled_.load(std::memory_order_relaxed);
    if (!settling && !stopping && !failed()) {
      sleep_ns = follow(applied);
    } else if (applied != 0 || (reset_refused_ && settling)) {
      carry_out(0, cause_of_reset(), 0);
    }
    if (settling && applied_mhz_.load(std::memory_order_relaxed) == 0) {
      settled_.store(true, std::memory_order_release);
      settled_bell_.fetch_add(1, std::memory_order_release);
      futex_wake_all(&settled_bell_);
    }
    if (stopping) {
      read_back();
      if (client_.close != nullptr) client_.close(client_.self);
      return;
    }
    if (read_at_ns_ != 0) {
      const uint64_t now = monotonic_ns();
      if (now >= read_at_ns_) {
        read_back();
      } else if (read_at_ns_ - now < sleep_ns) {
        sleep_ns = read_at_ns_ - now;
      }
    }
    if (client_.tick != nullptr) {
      const uint64_t tick_ns = client_.tick(client_.self);
      if (grant_changed()) continue;
      if (tick_ns < sleep_ns) sleep_ns = tick_ns;
    }
    asleep_.store(true, std::memory_order_seq_cst);
    if (bell_.load(std::memory_order_seq_cst) == bell) futex_wait(&bell_, bell, sleep_ns);
    asleep_.store(false, std::memory_order_relaxed);
  }
}

// Does what the policy wants now. Returns how long that holds, in ns.
uint64_t ClockActuator::follow(uint32_t applied) {
  const uint64_t now = monotonic_ns();
  const ClockPolicy::Wanted wanted = policy_->wanted(now);
  const uint64_t holds_ns = wanted.until_ns > now ? wanted.until_ns - now : 0;
  if (now - recorded_ns_ >= kRecordBudgetEveryNs) {
    if (recorded_ns_ != 0) record_budget(trace_, policy_);
    recorded_ns_ = now;
  }
  uint32_t mhz = 0;
  if (policy_->wants_sample() && client_.read != nullptr && client_.read(client_.self, &mhz) == 0) {
    policy_->sampled(mhz);
  }
  const uint64_t unseen = wanted.wish > taken_ ? wanted.wish - taken_ : 0;
  const bool waits_for_grant = put_off_ && wanted.mhz == put_off_mhz_ && unseen == 0;
  if (wanted.mhz != applied && !waits_for_grant) {
    const uint64_t delay_ns = wanted.mhz != 0 && client_.delay != nullptr ? client_.delay(client_.self, wanted.mhz) : 0;
    if (delay_ns > 0) return delay_ns < holds_ns ? delay_ns : holds_ns;
    put_off_mhz_ = wanted.mhz;
    carry_out(wanted.mhz, {wanted.call, wanted.asked_ns != 0 ? wanted.asked_ns : now}, unseen > 0 ? unseen - 1 : 0);
  }
  if (put_off_ && wanted.mhz != 0) policy_->withheld();
  if (unseen > 0) taken_ = wanted.wish;
  const uint64_t end_ns = monotonic_ns();
  return wanted.until_ns > end_ns ? wanted.until_ns - end_ns : 0;
}

bool ClockActuator::grant_changed() {
  const uint64_t grant = client_.grant != nullptr ? client_.grant(client_.self) : grant_;
  if (grant == grant_) return false;
  if (grant == 0) trace_->note(kLeaseLostNote);
  grant_ = grant;
  if (grant != 0) put_off_ = false;
  // Whatever was set has been undone, and the clock now is not what came of it.
  applied_mhz_.store(0, std::memory_order_release);
  if (read_at_ns_ != 0) trace_->append(unread_);
  read_at_ns_ = 0;
  return true;
}

void ClockActuator::read_back() {
  if (read_at_ns_ == 0 || client_.read == nullptr) return;
  read_at_ns_ = 0;
  uint32_t mhz = 0;
  if (client_.read(client_.self, &mhz) == 0) unread_.clock.read_back_mhz = mhz;
  trace_->append(unread_);
}

void ClockActuator::carry_out(uint32_t mhz, const Cause& cause, uint64_t coalesced) {
  read_back();
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_CLOCK;
  record.flags = client_.dry ? POWERCCL_FLAG_DRY : 0;
  record.clock.call_id = cause.call_id;
  record.clock.asked_ns = cause.asked_ns;
  record.clock.min_mhz = record.clock.max_mhz = mhz;
  record.clock.coalesced = static_cast<uint32_t>(coalesced);
  record.clock.begin_ns = monotonic_ns();
  // A set that failed may have had an effect all the same, so from here on it counts as set.
  if (mhz != 0) applied_mhz_.store(mhz, std::memory_order_release);
  const int result = mhz != 0 ? client_.set(client_.self, mhz, mhz) : client_.reset(client_.self);
  record.clock.end_ns = monotonic_ns();
  record.clock.result = result;
  if (result == 0 && mhz != 0 && client_.read != nullptr && record.clock.end_ns >= read_again_ns_) {
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
    // Whoever granted the clock undoes it, a reset that was refused before included.
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
    const char* text = client_.explain != nullptr ? client_.explain(client_.self, result, &hint) : nullptr;
    if (client_.speaks) {
      say(hint, "the clock cannot be %s (code %d%s%s); PowerCCL sets no more clocks in this process",
          mhz != 0 ? "set" : "reset", result, text != nullptr ? ": " : "", text != nullptr ? text : "");
    }
    trace_->note(mhz != 0 ? "clock set failed: disarmed to observe" : "clock reset failed: disarmed to observe");
  }
  if (mhz != 0) carry_out(0, cause, 0);
}

}  // namespace powerccl
