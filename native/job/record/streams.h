// SPDX-License-Identifier: Apache-2.0
// Which streams compute, which communicate, and which call an event stands for: what tells where computation waits.
//
// An event recorded in a stream represents the last call made there. So does an event of a stream that was made to wait
// for such an event, if next to nothing was computed behind it. A cast of a reduced gradient counts as next to nothing.
#pragma once
#include <stdint.h>

#include <atomic>

#include "base/basics.h"

namespace powerccl {

// What an adapter hands to foreign code to name an event by: a number, never an address. Libraries keep such names
// longer than the things named (a captured call's for as long as its graph). So each name carries what is needed to
// notice that.
using Handle = uint64_t;  // 0: nothing

enum class HandleKind : uint32_t { kNone = 0, kGroup, kCall, kLaunch, kKernel, kTask, kChannel };

constexpr Handle kCapturedBit = 1u << 4;  // a call's
constexpr int kSerialBits = 44;

// kind 4 bits, flag 1, spare 3, slot 12, serial 44.
constexpr Handle make_handle(HandleKind kind, uint32_t slot, uint64_t serial, Handle flag = 0) {
  return static_cast<Handle>(kind) | flag | uint64_t{slot & 0xfffu} << 8 | serial << (64 - kSerialBits);
}
constexpr HandleKind kind_of(Handle handle) {
  return static_cast<HandleKind>(handle & 0xf);
}
constexpr uint32_t slot_of(Handle handle) {
  return handle >> 8 & 0xfff;
}
constexpr uint64_t serial_of(Handle handle) {
  return handle >> (64 - kSerialBits);
}
constexpr Handle retyped(Handle handle, HandleKind kind) {
  return (handle & ~Handle{0x1f}) | static_cast<Handle>(kind);
}

// A table from numbers to rows, of fixed size: eight places for each number. Looked up
// without a lock; what finds all eight taken has no row.
// Key 0 is none. A removed key's row keeps its contents until another key takes its place: the thread that adds one
// makes it new (`added`).
template <typename Row, uint32_t kRows>
class KeyTable {
  static_assert((kRows & (kRows - 1)) == 0 && kRows >= 8);

 public:
  Row* find(uint64_t key) {
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      if (keys_[i].load(std::memory_order_acquire) == key) return &rows_[i];
    }
    return nullptr;
  }

  // The row of `key`, taken if need be.
  Row* find_or_add(uint64_t key, bool* added) {
    *added = false;
    if (Row* row = find(key)) return row;
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      uint64_t free = 0;
      if (keys_[i].compare_exchange_strong(free, key, std::memory_order_acq_rel)) {
        *added = true;
        return &rows_[i];
      }
      if (free == key) return &rows_[i];  // another thread was as quick
    }
    return nullptr;
  }

  void remove(uint64_t key) {
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      uint64_t is = key;
      keys_[i].compare_exchange_strong(is, 0, std::memory_order_acq_rel);
    }
  }

  // The row at a place of `key`, and its key: for a caller that makes room.
  static constexpr uint32_t kWays = 8;
  Row* at(uint64_t key, uint32_t way, uint64_t* holds) {
    const uint32_t place = place_of(key) + way;
    *holds = keys_[place].load(std::memory_order_relaxed);
    return &rows_[place];
  }

 private:
  static uint32_t place_of(uint64_t key) {
    return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15u) >> 40) & (kRows - 1) & ~(kWays - 1);
  }

  std::atomic<uint64_t> keys_[kRows] = {};
  Row rows_[kRows] = {};
};

struct Communicator;

// A call and whose it is. The communicator's index tells whether its place has gone to another one since.
struct CallOfStream {
  Communicator* communicator = nullptr;
  uint32_t communicator_index = 0;
  Handle call = 0;  // 0: none
};

class Streams {
 public:
  static constexpr uint32_t kStreams = 1024, kEvents = 4096;
  static constexpr uint64_t kFewKernels = 4;  // behind a call, that still leave its event the call's
  // Computes: has had this part of the busiest stream's kernels, and of the most various one's kinds of them. Copies
  // beside collectives may be many, but it is the same one or two kernels again and again.
  static constexpr uint64_t kPartOfBusiest = 8, kPartOfKinds = 4;
  static constexpr uint32_t kRememberedWaits = 4;

  // The number a stream goes by. Handles are unique in a process, but for the default streams: 0 and 1 (one a GPU) and
  // 2 (one a thread and GPU).
  static uint64_t key(uint64_t handle, int device, uint64_t thread) {
    if (handle > 2) return handle;
    const uint64_t of_gpu = static_cast<uint64_t>(device + 1) << 4;
    return handle == 2 ? 2 | of_gpu | thread << 12 : 1 | of_gpu;
  }

  // The kind that `launched` takes, of a kernel at this address; 0: not known.
  static constexpr uint64_t kSomeKinds = 0xff;
  static constexpr uint64_t kind_of(uint64_t kernel) {
    return kernel == 0 ? kSomeKinds : uint64_t{1} << (kernel * 0x9e3779b97f4a7c15u >> 58);
  }

  // The job put kernels of its own into the stream, of these kinds.
  void launched(uint64_t stream, uint64_t count = 1, uint64_t kinds = kSomeKinds) {
    Stream* state = streams_.find(stream);
    if (state == nullptr) state = first_seen(stream);
    if (state == nullptr) return;
    // Kernels of two threads in one stream may count as one: what is asked for is an order of magnitude.
    const uint64_t kernels = state->kernels.load(std::memory_order_relaxed) + count;
    state->kernels.store(kernels, std::memory_order_relaxed);
    if (kernels > busiest_.load(std::memory_order_relaxed)) busiest_.store(kernels, std::memory_order_relaxed);
    const uint64_t known = state->kinds.load(std::memory_order_relaxed);
    if ((known & kinds) != kinds) new_kind(state, known | kinds);
  }
  // Whether a good part of the job's computation goes there.
  bool computes(uint64_t stream);

  void called(uint64_t stream, const CallOfStream& call);
  // The last call made in the stream or waited for by it.
  CallOfStream last_call(uint64_t stream);

  void recorded(uint64_t event, uint64_t stream);
  // The stream is to wait for the event. Call 0: for no known call. `stalls`: it computes, and has not waited
  // for this call before.
  CallOfStream waits(uint64_t stream, uint64_t event, bool* stalls);

  void event_gone(uint64_t event);
  void stream_gone(uint64_t stream);

 private:
  struct Stream {
    std::atomic<uint64_t> kernels{0};
    std::atomic<uint64_t> kinds{0};  // bits that its kernels' addresses hash to
    // Under lock_.
    uint64_t kernels_at_call = 0;
    CallOfStream last;
    Handle waited_for[kRememberedWaits] = {};
    uint32_t next_wait = 0;

    void clear();
  };
  struct Event {
    uint64_t stream = 0;
    uint64_t recorded = 0;  // counts up: which entry to give up where there is no room
    CallOfStream call;
  };

  Stream* stream_of(uint64_t stream);
  Stream* first_seen(uint64_t stream);
  Event* room_for(uint64_t event);
  void new_kind(Stream* stream, uint64_t kinds);
  bool computes(const Stream& stream) const;

  KeyTable<Stream, kStreams> streams_;
  KeyTable<Event, kEvents> events_;
  std::atomic<uint64_t> busiest_{0}, most_kinds_{0};
  uint64_t records_ = 0;
  SpinLock lock_;  // over calls of streams, and events
};

}  // namespace powerccl
