// SPDX-License-Identifier: Apache-2.0
// Reports NCCL's public functions to the runtime. If NCCL has no profiler plugin of ours (before 2.27, or by the user's
// choice), they are the only source. Otherwise they add only what the plugin interface lacks.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "runtime/runtime.h"

namespace powerccl::nccl {

// A call on its way to NCCL.
struct ApiCall {
  void* comm = nullptr;
  void* stream = nullptr;
  uint8_t pattern = POWERCCL_PATTERN_UNKNOWN;  // of a collective
  bool exchange = false, send = false;
  int type = 0, root = -1;
  size_t count = 0;
  bool one_sided = false;  // a signal or a wait for one: an exchange that NCCL reports to no plugin
};

// The call as the runtime receives it, except whether a graph captures it.
CallSeen seen_of(const ApiCall& call);

// Before NCCL is given the call; what is launched now, where there is no group, or else at the group's end.
void call_made(const ApiCall& call);
// Before and after the NCCL function that launches: the outermost end of a group, or the call itself.
void launch_begins();
void launch_ended(int result);
// A group begins, or one was given up.
void forget_calls();

}  // namespace powerccl::nccl
