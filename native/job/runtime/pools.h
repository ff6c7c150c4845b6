// SPDX-License-Identifier: Apache-2.0
// The runtime's fixed pools: what is under way, from its beginning to its record.
#pragma once
#include <stdint.h>

#include <atomic>

#include "abi/trace.h"
#include "base/basics.h"
#include "record/handle.h"
#include "record/patterns.h"
#include "record/records.h"

namespace powerccl {

struct Communicator;
class Runtime;

// One outermost group of calls on one thread; only that thread touches it. Serial 0: free.
struct CallGroup {
  static constexpr uint32_t kCalls = 16;  // more are recorded immediately, without their end

  struct Call {
    Communicator* communicator;
    powerccl_trace_record record;
  };
  // Everything that one communicator sends and receives in the group: one call to us.
  struct Exchange {
    Communicator* communicator;
    powerccl_trace_record record;
    PointToPoint parts;
    bool closed;
  };

  std::atomic<uint64_t> serial{0};
  std::atomic<uint64_t> opened_ns{0};
  uint32_t number = 0;  // in the trace; 0 until there are two calls
  uint32_t call_count = 0, exchange_count = 0;
  bool recorded_some = false;
  Call calls[kCalls];
  Exchange exchanges[kCalls];
};

// A kernel on its way to a stream; used by one thread, from just before to just after the launch.
struct Launch {
  std::atomic<uint64_t> serial{0};
  Communicator* communicator = nullptr;
  Handle group = 0;
  void* stream = nullptr;
};

// A kernel that was launched, until its last channel has stopped.
struct LaunchedKernel {
  SpinLock lock;  // over everything but the serial, which changes under it and is looked at before
  std::atomic<uint64_t> serial{0};
  Communicator* communicator = nullptr;
  Handle group = 0;                 // of an adapter that sees launches only
  uint64_t opened_ns = UINT64_MAX;  // no time: not begun, or over
  uint64_t call = 0;                // id of the first call in it
  uint64_t bytes = 0;
  uint64_t gpu_start_ns = 0, gpu_stop_ns = 0, seen_start_ns = 0, seen_stop_ns = 0;
  PointToPoint parts;
  uint32_t tasks = 0, expected = 0, started = 0, stopped = 0;
  uint32_t holds = 0;  // of the clock, until the kernel has stopped
  uint16_t flags = 0;
  Peer to, from;  // of its sends and receives
  uint8_t pattern = POWERCCL_PATTERN_UNKNOWN, algorithm = 0, protocol = 0, channels = 0, warps = 0;
  bool enqueued = false;
};

// A host callback behind a managed call. A slot is free again only when its callback has fired, because the driver
// holds its address until then.
struct Callback {
  enum State : uint32_t { kFree, kWaiting, kCancelled };
  std::atomic<uint32_t> state{kFree};
  // Atomics, because a communicator that goes looks through slots that others are taking.
  std::atomic<uint32_t> gpu{0}, communicator{0}, holds{0};
  std::atomic<uint64_t> call{0};
  Runtime* runtime = nullptr;
};

// What a send-receive call was taken for, for kernels that come long after its group is gone.
struct RecentCall {
  std::atomic<uint64_t> key{0}, bytes{0};
  std::atomic<uint32_t> pattern{0};
};

// Takes a free slot of a pool whose slots carry a serial (0: free). Null: all are taken.
template <typename Slot, uint32_t kCount>
Slot* take_slot(Slot (&pool)[kCount], std::atomic<uint64_t>* serials, uint32_t* slot, uint64_t* serial) {
  *serial = serials->fetch_add(1, std::memory_order_relaxed) + 1;
  for (uint32_t tried = 0; tried < kCount; ++tried) {
    *slot = static_cast<uint32_t>((*serial + tried) % kCount);
    uint64_t free = 0;
    if (pool[*slot].serial.load(std::memory_order_relaxed) == 0 &&
        pool[*slot].serial.compare_exchange_strong(free, *serial, std::memory_order_acquire)) {
      return &pool[*slot];
    }
  }
  return nullptr;
}

}  // namespace powerccl
