// SPDX-License-Identifier: Apache-2.0
// When a kernel starts and stops, for kernels without NCCL events. The stream writes words into the host's memory
// around NCCL's launch, and a thread reads them as they arrive. Only for policies that decide by what runs.
#pragma once
#include "adapters/nccl/adapter.h"

namespace powerccl::nccl {

class Live {
 public:
  static constexpr uint32_t kSlots = 256;  // kernels under way; without a free one a kernel is not seen live
  static constexpr uint32_t kNone = UINT32_MAX;

  // Has the stream write when it gets here. kNone: nothing was put into it.
  uint32_t begin(void* stream);
  // And here, behind the kernel of `call`; call 0: there is none.
  void end(uint32_t slot, void* stream, const CallOfStream& call);
  // Ends the thread, for good.
  void stop();
  // The communicator is being destroyed: nothing more is reported for it.
  void finish(const Communicator* communicator);

 private:
  enum class State : uint8_t { kFree, kBegun, kWaiting, kRunning, kAbandoned };
  struct Slot {
    State state = State::kFree;
    uint32_t serial = 0;
    CallOfStream call;
  };

  bool open();
  bool write(void* stream, uint32_t word, uint32_t value);
  static void* watch(void* self);
  bool look();

  SpinLock lock_;  // over slots, and opening
  bool opened_ = false;
  std::atomic<bool> usable_{false};
  uint32_t* words_ = nullptr;  // two a slot
  uint64_t device_ = 0;        // where a GPU finds them
  uint32_t serial_ = 0, last_ = 0;
  Slot slots_[kSlots];
  std::atomic<uint32_t> work_{0};
  std::atomic<bool> runs_{false}, stopping_{false};
  pthread_t thread_ = {};
};

// One per process.
Live& live();

}  // namespace powerccl::nccl
