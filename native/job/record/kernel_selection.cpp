// SPDX-License-Identifier: Apache-2.0
#include "record/kernel_selection.h"

#include <pthread.h>

namespace powerccl {
namespace {

// 0 is no signature. The communicator counts modulo 2^15, which at worst makes a prediction wrong.
uint32_t signature_of(const KernelSelection::Operation& operation) {
  return 0x80000000u | (operation.comm & 0x7fffu) << 16 | static_cast<uint32_t>(operation.pattern) << 8 |
         size_class(operation.bytes) << 1 | (operation.captured ? 1u : 0u);
}
uint32_t hash(uint32_t signature) {
  return (signature * 2654435761u) >> 24;
}

uint64_t this_thread() {
  return static_cast<uint64_t>(pthread_self());
}

}  // namespace

void KernelSelection::begin(KernelEvents mode, bool selectable, void (*teller)(void*, bool), void* context) {
  SpinGuard guard(lock_);
  tell_ = teller;
  context_ = context;
  fixed_.store(mode != KernelEvents::kAuto || !selectable, std::memory_order_relaxed);
  const bool on = mode != KernelEvents::kNone;
  asked_.store(on, std::memory_order_relaxed);
  tell_(context_, on);
}

void KernelSelection::tell(bool on) {
  asked_.store(on, std::memory_order_relaxed);
  changed_ns_ = monotonic_ns();
  changed_by_ = this_thread();
  tell_(context_, on);
}

void KernelSelection::others_decide(Others what) {
  SpinGuard guard(lock_);
  if (tell_ == nullptr) return;
  const bool decided = others_.exchange(what != Others::kOurs, std::memory_order_relaxed);
  if (!decided) own_ = asked();
  tell(what == Others::kOurs ? own_ : what == Others::kAll);
}

bool KernelSelection::capture_begins() {
  const bool all = credit_of_all_ns_.load(std::memory_order_relaxed) > 0;
  return !fixed_.load(std::memory_order_relaxed) && keep(all) && !all;
}

bool KernelSelection::keep(bool on) {
  SpinGuard guard(lock_);
  if (fixed_.exchange(true, std::memory_order_relaxed)) return false;
  own_ = on;
  if (others_.load(std::memory_order_relaxed)) return false;
  if (on != asked_.load(std::memory_order_relaxed)) tell(on);
  return true;
}

void KernelSelection::made(const Operation& operation, bool asked) {
  if (operation.pattern >= POWERCCL_PATTERNS) return;
  Class& kind = class_of(operation.pattern, operation.bytes);
  if (asked) {
    kind.asked.fetch_add(1, std::memory_order_relaxed);
    kind.since_asked.store(0, std::memory_order_relaxed);
  } else {
    kind.since_asked.fetch_add(1, std::memory_order_relaxed);
  }
  if (fixed_.load(std::memory_order_relaxed)) return;
  const int64_t earned = static_cast<int64_t>(kind.duration_ns.load(std::memory_order_relaxed) / 100);
  credit_of_all_ns_.fetch_add(earned - static_cast<int64_t>(kCostNs), std::memory_order_relaxed);
  const int64_t credit =
      credit_ns_.load(std::memory_order_relaxed) + earned - (asked ? static_cast<int64_t>(kCostNs) : 0);
  const int64_t kept = credit < kMostCreditNs ? credit : kMostCreditNs;
  credit_ns_.store(kept > -kMostCreditNs ? kept : -kMostCreditNs, std::memory_order_relaxed);
  const uint64_t now_ns = monotonic_ns(), made_ns = made_ns_.exchange(now_ns, std::memory_order_relaxed);
  if (made_ns != 0 && now_ns > made_ns) {
    const int64_t spare =
        spare_ns_.load(std::memory_order_relaxed) + static_cast<int64_t>((now_ns - made_ns) / kPartOfTime);
    spare_ns_.store(spare < kMostSpareNs ? spare : kMostSpareNs, std::memory_order_relaxed);
  }
  if (operation.captured) {
    keep(asked);
    return;
  }
  if (others_.load(std::memory_order_relaxed)) return;
  const uint32_t now = signature_of(operation);
  const uint32_t before = previous_.exchange(now, std::memory_order_relaxed);
  if (before != 0) successors_[hash(before)].store(uint64_t{before} << 32 | now, std::memory_order_relaxed);
  const uint64_t entry = successors_[hash(now)].load(std::memory_order_relaxed);
  const uint32_t next = entry >> 32 == now ? static_cast<uint32_t>(entry) : 0;
  const bool want = wanted(next);
  if (want == asked_.load(std::memory_order_relaxed)) return;
  SpinGuard guard(lock_);
  if (open_groups_ == 0 && free_to_choose()) tell(want);
}

bool KernelSelection::wanted(uint32_t signature) {
  if (signature == 0) return unknown_.fetch_add(1, std::memory_order_relaxed) < kUnknownNext;
  const Class& kind = classes_[signature >> 8 & 0xffu][signature >> 1 & 0x7fu];
  const uint32_t asked = kind.asked.load(std::memory_order_relaxed);
  const uint32_t since = kind.since_asked.load(std::memory_order_relaxed) + 1;
  if (asked < kFirst) return true;
  if (kind.answered.load(std::memory_order_relaxed) == 0) return asked < kSilentAfter || since >= kSilentEvery;
  const uint64_t duration_ns = kind.duration_ns.load(std::memory_order_relaxed);
  if (duration_ns >= kFreeNs) return true;
  constexpr int64_t kCost = static_cast<int64_t>(kCostNs);
  if (since * duration_ns >= kFreeNs && credit_ns_.load(std::memory_order_relaxed) >= kCost) return true;
  if (spare_ns_.load(std::memory_order_relaxed) < kCost) return false;
  spare_ns_.fetch_sub(kCost, std::memory_order_relaxed);
  return true;
}

void KernelSelection::answered(uint8_t pattern, uint64_t bytes, uint64_t duration_ns) {
  if (pattern >= POWERCCL_PATTERNS) return;
  Class& kind = class_of(pattern, bytes);
  // Waiting for late ranks makes durations longer, never shorter: down immediately, up slowly.
  const uint64_t old = kind.duration_ns.load(std::memory_order_relaxed);
  const bool first = kind.answered.fetch_add(1, std::memory_order_relaxed) == 0;
  kind.duration_ns.store(first || duration_ns < old ? duration_ns : old + (duration_ns - old) / 8,
                         std::memory_order_relaxed);
}

bool KernelSelection::answers(uint8_t pattern, uint64_t bytes) const {
  return pattern < POWERCCL_PATTERNS &&
         classes_[pattern][size_class(bytes)].answered.load(std::memory_order_relaxed) > 0;
}

void KernelSelection::point_to_point_begins(bool with_a_send) {
  SpinGuard guard(lock_);
  if (open_groups_++ == 0 && free_to_choose() && changed_by_ != this_thread() && changed_ns_ != 0 &&
      monotonic_ns() - changed_ns_ < kRecentlyNs && asked() != with_a_send) {
    tell(with_a_send);
  }
}

void KernelSelection::point_to_point_ends() {
  SpinGuard guard(lock_);
  if (open_groups_ > 0) --open_groups_;
}

}  // namespace powerccl
