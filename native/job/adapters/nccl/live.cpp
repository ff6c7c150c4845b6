// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/live.h"

#include <sys/mman.h>

#include "base/own_thread.h"

namespace powerccl::nccl {
namespace {

constexpr uint64_t kLookEveryNs = 200000;  // how late a start or stop may be seen
constexpr uint64_t kRestNs = 1000000000u;
constexpr size_t kBytes = 2 * sizeof(uint32_t) * Live::kSlots;
constexpr unsigned kForAllGpus = 1 | 2;  // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP

Live g_live;

}  // namespace

Live& live() {
  return g_live;
}

// Memory of our own that is shown to the driver, not the driver's: the thread may outlive the driver. Under the lock.
bool Live::open() {
  if (opened_) return usable_.load(std::memory_order_relaxed);
  opened_ = true;
  if (!g_cuda.can_write()) return false;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (g_cuda.mem_host_register(memory, kBytes, kForAllGpus) != 0 ||
      g_cuda.mem_host_get_device_pointer(&device_, memory, 0) != 0) {
    return false;
  }
  words_ = static_cast<uint32_t*>(memory);
  const bool started = start_thread(&thread_, "powerccl-live", watch, this) == 0;
  runs_.store(started, std::memory_order_release);
  usable_.store(started, std::memory_order_release);
  return started;
}

bool Live::write(void* stream, uint32_t word, uint32_t value) {
  if (g_cuda.stream_write_value32(stream, device_ + uint64_t{word} * sizeof(uint32_t), value, 0) == 0) return true;
  usable_.store(false, std::memory_order_release);
  return false;
}

uint32_t Live::begin(void* stream) {
  uint32_t free_slot = kNone, serial = 0;
  {
    SpinGuard guard(lock_);
    if (!open()) return kNone;
    for (uint32_t tried = 0; tried < kSlots && free_slot == kNone; ++tried) {
      const uint32_t candidate = (last_ + 1 + tried) % kSlots;
      if (slots_[candidate].state == State::kFree) free_slot = candidate;
    }
    if (free_slot == kNone) return kNone;
    last_ = free_slot;
    if (++serial_ == 0) ++serial_;
    serial = serial_;
    slots_[free_slot] = {State::kBegun, serial, {}};
  }
  if (write(stream, 2 * free_slot, serial)) return free_slot;
  SpinGuard guard(lock_);
  slots_[free_slot].state = State::kFree;
  return kNone;
}

void Live::end(uint32_t slot, void* stream, const CallOfStream& call) {
  if (slot == kNone) return;
  const bool written = write(stream, 2 * slot + 1, slots_[slot].serial);
  {
    SpinGuard guard(lock_);
    // The stream still writes the first word. Until then no other call may use the slot.
    slots_[slot].state = written && call.call != 0 ? State::kWaiting : State::kAbandoned;
    slots_[slot].call = call;
  }
  work_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&work_);
}

void Live::stop() {
  {
    SpinGuard guard(lock_);
    opened_ = true;
    usable_.store(false, std::memory_order_release);
  }
  stopping_.store(true, std::memory_order_release);
  if (!runs_.exchange(false, std::memory_order_acq_rel)) return;
  work_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&work_);
  pthread_join(thread_, nullptr);
}

void Live::finish(const Communicator* communicator) {
  SpinGuard guard(lock_);
  for (Slot& slot : slots_) {
    if (slot.call.communicator != communicator) continue;
    if (slot.state == State::kWaiting || slot.state == State::kRunning) slot.state = State::kAbandoned;
  }
}

// False: there is nothing to look at.
bool Live::look() {
  bool some = false;
  const uint64_t now = monotonic_ns();
  for (uint32_t i = 0; i < kSlots; ++i) {
    CallOfStream call;
    bool starts = false, stops = false;
    {
      SpinGuard guard(lock_);
      Slot& slot = slots_[i];
      if (slot.state == State::kFree || slot.state == State::kBegun) continue;
      some = true;
      const bool begun = __atomic_load_n(&words_[2 * i], __ATOMIC_ACQUIRE) == slot.serial;
      const bool ended = __atomic_load_n(&words_[2 * i + 1], __ATOMIC_ACQUIRE) == slot.serial;
      call = slot.call;
      starts = begun && slot.state == State::kWaiting;
      if (starts) slot.state = State::kRunning;
      stops = ended && slot.state == State::kRunning;
      if (ended) slot.state = State::kFree;
    }
    if (call.communicator == nullptr || call.communicator->index != call.communicator_index) continue;
    if (starts) runtime()->kernel_seen(call.communicator, call.call, now, false);
    if (stops) runtime()->kernel_seen(call.communicator, call.call, now, true);
  }
  return some;
}

void* Live::watch(void* self) {
  Live* live = static_cast<Live*>(self);
  while (!live->stopping_.load(std::memory_order_acquire)) {
    const uint32_t work = live->work_.load(std::memory_order_acquire);
    if (live->look()) {
      sleep_ns(kLookEveryNs);
    } else {
      futex_wait(&live->work_, work, kRestNs);
    }
  }
  return nullptr;
}

}  // namespace powerccl::nccl
