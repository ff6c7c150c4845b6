// SPDX-License-Identifier: Apache-2.0
// The user's own profiler plugin, behind ours: it receives what NCCL would report to it.
//
// NCCL keeps one handle an event. If both profilers have one, NCCL gets the number of a pair. Handles of only one are
// passed on unchanged. Low bits tell them apart: ours carry their kind, pairs kPairBits. A profiler's own are addresses
// of at least eight bytes (any others are put into pairs).
#pragma once
#include <atomic>

#include "abi/nccl_profiler.h"
#include "adapters/nccl/event_masks.h"
#include "runtime/runtime.h"

namespace powerccl::nccl {

// A communicator of NCCL's with both profilers: what NCCL gets as its context, with kBothBit.
struct Both {
  std::atomic<bool> in_use{false};
  Communicator* own = nullptr;  // null: PowerCCL leaves it alone
  void* user = nullptr;
  EventMask* mask = nullptr;
};
constexpr uintptr_t kBothBit = 1;

inline Both* both_of(void* context) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(context);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it was one
  return (number & kBothBit) == 0 ? nullptr : reinterpret_cast<Both*>(number & ~kBothBit);
}

constexpr Handle kHandleBits = 7, kPairBits = 7;
Handle ours_of_pair(Handle pair);

// Our part of a handle that NCCL gives back.
inline Handle ours_of(void* handle) {
  const Handle given = reinterpret_cast<Handle>(handle);
  switch (given & kHandleBits) {
    case 0:
      return 0;
    case kPairBits:
      return ours_of_pair(given);
    default:
      return given;
  }
}

// Whether the user's profiler has a part in the handle.
inline bool is_shared(void* handle) {
  const Handle bits = reinterpret_cast<Handle>(handle) & kHandleBits;
  return handle != nullptr && (bits == 0 || bits == kPairBits);
}

// A communicator begins, of an NCCL that speaks `version`. Null: there is no other profiler, or it is left out, which
// is said once with the reason.
Both* chain_communicator(int version, const CommunicatorSeen& seen, Logger log);
void* context_of(Both* both);
// Takes over which events it wants now, which it may change at any time; each event that is passed on does so too.
void take_over_chained_mask();
// Before the communicator ends for PowerCCL.
void unchain_communicator(Both* both);

// What to give NCCL for an event that is `ours` to us. `before`: what NCCL held in its place.
void* start_chained(const Both& both, int version, Handle own, void* before, EventDescriptor* event);
// Only for shared handles.
void stop_chained(void* handle);
void record_state_chained(void* handle, int state, StateArguments* arguments);

// Whether PowerCCL asked for a reported task, or only the user's profiler did. Only for NCCLs that take it per call (v5
// and later).
bool we_asked_for(const EventDescriptor& task);

}  // namespace powerccl::nccl
