// SPDX-License-Identifier: Apache-2.0
#include "clock/clock_actuator.h"

#include "base/basics.h"
#include "base/own_thread.h"

namespace powerccl {

bool ClockActuator::start(ClockClient* client, ClockPolicy* policy, Trace* trace, bool debug) {
  policy_ = policy;
  stopping_.store(false);
  follower_.begin(client, policy, trace, debug);
  started_ = start_thread(&thread_, "powerccl-clock", thread_main, this) == 0;
  if (!started_) follower_.end();
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
  return follower_.at_default();
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

void ClockActuator::work() {
  // The first wish is there already, perhaps, and the grant that it needs is not asked for yet.
  follower_.tend(0);
  for (;;) {
    const uint32_t bell = bell_.load(std::memory_order_seq_cst);
    const bool stopping = stopping_.load(std::memory_order_seq_cst);
    const bool settling = !settled_.load(std::memory_order_relaxed);
    if (settling || stopping) follower_.reset(settling);
    if (settling) {
      settled_.store(true, std::memory_order_release);
      settled_bell_.fetch_add(1, std::memory_order_release);
      futex_wake_all(&settled_bell_);
    }
    if (stopping) return follower_.end();
    const uint64_t idle_ns = follower_.follow();
    if (idle_ns == 0) continue;
    asleep_.store(true, std::memory_order_seq_cst);
    if (bell_.load(std::memory_order_seq_cst) == bell) futex_wait(&bell_, bell, idle_ns);
    asleep_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace powerccl
