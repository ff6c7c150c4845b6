// SPDX-License-Identifier: Apache-2.0
// What NCCL is asked to tell: a word of event bits in each loaded NCCL, which it reads again for every group of calls.
//
// The word holds what PowerCCL wants and what the chained profiler wants. Others may write it too (an operator through
// NCCL's RAS client, `profiler_mask`): then it is theirs, and is left as it is.
#pragma once
#include <stdint.h>

#include <atomic>

#include "runtime/runtime.h"

namespace powerccl::nccl {

struct EventMask {
  std::atomic<int*> word{nullptr};     // NCCL's own; null: this place is not in use
  std::atomic<int> written{0};         // what we left in it
  std::atomic<bool> serves_us{false};  // it serves communicators that PowerCCL records
  std::atomic<bool> taken{false};      // another profiler has written it
  uint32_t communicators = 0;
};

// The place of NCCL's `word`, for one communicator more; null: no room.
EventMask* add_to_mask(int* word);
// One communicator less. Behind the last one NCCL may be unloaded, and its word is touched no more.
void remove_from_mask(EventMask* mask);

// What PowerCCL always wants, whether it wants kernel events too (Adapter::ask_kernel_events), and what the chained
// profiler wants. From any thread.
void want_events(int mask);
void want_kernel_events(void*, bool on);
void want_for_chained(int mask);
int wanted_events();

// Whether NCCL reports calls, according to the word.
bool tells_of_calls(const EventMask* mask);

// Whether another profiler has written a word since the last check. If so, this is logged, and kernel events follow
// that profiler's wish. No clock stays changed if calls are not reported any more. From any thread; costs a few loads
// otherwise.
void check_mask_owner(Runtime* runtime);

}  // namespace powerccl::nccl
