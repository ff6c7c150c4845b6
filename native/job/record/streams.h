// SPDX-License-Identifier: Apache-2.0
// Which streams compute, which communicate, and which call an event stands for: what tells where computation waits.
//
// An event recorded in a stream represents the last call made there. So does an event of a stream that was made to wait
// for such an event, if next to nothing was computed behind it. A cast of a reduced gradient counts as next to nothing.
#pragma once
#include <stdint.h>

#include <atomic>

#include "base/basics.h"
#include "record/handle.h"
#include "record/key_table.h"

namespace powerccl {

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
