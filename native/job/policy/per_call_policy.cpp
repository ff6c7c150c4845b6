// SPDX-License-Identifier: Apache-2.0
#include "policy/per_call_policy.h"

#include <sched.h>

namespace powerccl {

void PerCallPolicy::hold(uint32_t mhz, uint64_t call, uint64_t now_ns) {
  const uint64_t number = wished_.fetch_add(1, std::memory_order_seq_cst) + 1;
  Wish& wish = ring_[number % kRing];
  wish.number.store(0, std::memory_order_seq_cst);
  wish.mhz.store(mhz, std::memory_order_release);
  wish.call.store(call, std::memory_order_release);
  wish.asked_ns.store(now_ns, std::memory_order_release);
  wish.number.store(number, std::memory_order_release);
  // Counted after the wish: a clock thread that sees a hold must not take an older wish for that hold's.
  holds_.fetch_add(1, std::memory_order_seq_cst);
}

void PerCallPolicy::over(uint64_t call, uint64_t now_ns) {
  released_call_.store(call, std::memory_order_relaxed);
  released_ns_.store(now_ns, std::memory_order_relaxed);
}

bool PerCallPolicy::release(uint32_t holds, uint64_t call, uint64_t now_ns) {
  over(call, now_ns);
  // Holds that rest() has already forgotten are not taken back twice.
  int64_t before = holds_.load(std::memory_order_relaxed);
  int64_t after = 0;
  do {
    after = before > static_cast<int64_t>(holds) ? before - static_cast<int64_t>(holds) : 0;
  } while (!holds_.compare_exchange_weak(before, after, std::memory_order_seq_cst));
  return after == 0 && before != 0;
}

void PerCallPolicy::rest(uint64_t now_ns) {
  // The caller that forgets holds asks for the reset; no call does.
  if (holds_.load(std::memory_order_seq_cst) > 0) over(0, now_ns);
  holds_.store(0, std::memory_order_seq_cst);
}

ClockPolicy::Wanted PerCallPolicy::wanted(uint64_t now_ns) {
  Wanted wanted;
  wanted.until_ns = now_ns + kFarNs;
  if (holds_.load(std::memory_order_seq_cst) > 0 && newest(&wanted)) return wanted;
  wanted.call = released_call_.load(std::memory_order_relaxed);
  wanted.asked_ns = released_ns_.load(std::memory_order_relaxed);
  return wanted;
}

bool PerCallPolicy::newest(Wanted* wanted) {
  for (;;) {
    const uint64_t number = wished_.load(std::memory_order_seq_cst);
    if (number == 0) return false;
    Wish& wish = ring_[number % kRing];
    if (wish.number.load(std::memory_order_acquire) != number) {
      sched_yield();  // being written this moment
      continue;
    }
    wanted->mhz = wish.mhz.load(std::memory_order_acquire);
    wanted->call = wish.call.load(std::memory_order_acquire);
    wanted->asked_ns = wish.asked_ns.load(std::memory_order_acquire);
    wanted->wish = number;
    if (wish.number.load(std::memory_order_relaxed) == number) return true;
  }
}

}  // namespace powerccl
