// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/event_masks.h"

#include "abi/nccl_profiler.h"
#include "base/basics.h"
#include "base/log.h"

namespace powerccl::nccl {
namespace {

constexpr int kKernelEvents = kEventColl | kEventP2p | kEventKernelCh;

constexpr uint32_t kMasks = 4;  // NCCLs in a process; there is hardly ever a second
constinit EventMask g_masks[kMasks];
constinit SpinLock g_lock;  // over what is wanted and the words
constinit std::atomic<int> g_base{0};
constinit int g_kernel_events = 0, g_chained = 0;

bool written_by_others(const EventMask& mask, const int* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED) != mask.written.load(std::memory_order_relaxed);
}

void write(EventMask* mask) {
  int* word = mask->word.load(std::memory_order_relaxed);
  if (word == nullptr || mask->taken.load(std::memory_order_relaxed) || written_by_others(*mask, word)) return;
  const bool serves_us = mask->serves_us.load(std::memory_order_relaxed);
  const int wanted = (serves_us ? g_base.load(std::memory_order_relaxed) | g_kernel_events : 0) | g_chained;
  mask->written.store(wanted, std::memory_order_relaxed);
  __atomic_store_n(word, wanted, __ATOMIC_RELAXED);
}

void write_all() {
  for (EventMask& each : g_masks) write(&each);
}

// The other profiler owns the word from now on.
bool was_taken(EventMask* mask, int* now) {
  int* word = mask->word.load(std::memory_order_acquire);
  if (word == nullptr || !written_by_others(*mask, word)) return false;
  SpinGuard guard(g_lock);  // not in the midst of a write of ours
  if (mask->word.load(std::memory_order_relaxed) != word || !written_by_others(*mask, word)) return false;
  *now = __atomic_load_n(word, __ATOMIC_RELAXED);
  mask->written.store(*now, std::memory_order_relaxed);
  mask->taken.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace

EventMask* add_to_mask(int* word) {
  SpinGuard guard(g_lock);
  EventMask* free_mask = nullptr;
  for (EventMask& each : g_masks) {
    int* known = each.word.load(std::memory_order_relaxed);
    if (known == word) {
      free_mask = &each;
      break;
    }
    if (known == nullptr && free_mask == nullptr) free_mask = &each;
  }
  if (free_mask == nullptr) return nullptr;
  if (free_mask->communicators++ == 0) {
    free_mask->serves_us.store(false, std::memory_order_relaxed);
    free_mask->taken.store(false, std::memory_order_relaxed);
    free_mask->written.store(__atomic_load_n(word, __ATOMIC_RELAXED), std::memory_order_relaxed);
    free_mask->word.store(word, std::memory_order_release);
  }
  write(free_mask);
  return free_mask;
}

void remove_from_mask(EventMask* mask) {
  SpinGuard guard(g_lock);
  if (mask == nullptr || mask->communicators == 0) return;
  --mask->communicators;
  if (mask->communicators == 0) mask->word.store(nullptr, std::memory_order_release);
}

void want_events(int mask) {
  SpinGuard guard(g_lock);
  g_base.store(mask, std::memory_order_relaxed);
  write_all();
}

int wanted_events() {
  return g_base.load(std::memory_order_relaxed);
}

void want_kernel_events(void*, bool on) {
  SpinGuard guard(g_lock);
  g_kernel_events = on ? kKernelEvents : 0;
  write_all();
}

void want_for_chained(int mask) {
  SpinGuard guard(g_lock);
  g_chained = mask;
  write_all();
}

bool tells_of_calls(const EventMask* mask) {
  const int* word = mask == nullptr ? nullptr : mask->word.load(std::memory_order_acquire);
  return word != nullptr && (__atomic_load_n(word, __ATOMIC_RELAXED) & kEventCollApi) != 0;
}

void check_mask_owner(Runtime* runtime) {
  int now = 0;
  for (EventMask& mask : g_masks) {
    if (!was_taken(&mask, &now)) continue;
    const int base = g_base.load(std::memory_order_relaxed);
    const bool calls = (now & base) == base;
    if (runtime->environment().speaks()) {
      say(nullptr, "NCCL's mask of profiler events was set to 0x%x by something else, and stays so; %s",
          static_cast<unsigned>(now),
          calls ? "kernels are recorded as it says" : "what it leaves out is not recorded, and no clock is changed");
    }
    if (!calls) runtime->calls_withdrawn();
    runtime->selection().others_decide((now & kEventKernelCh) != 0 ? KernelSelection::Others::kAll
                                                                   : KernelSelection::Others::kNone);
  }
}

}  // namespace powerccl::nccl
