// SPDX-License-Identifier: Apache-2.0
// Calls that no plugin is told of: NCCL 2.28 carries collectives out by copy engines before its profiler hears of them
// (seen with 2.28.9). The functions that stand before NCCL's see such a call: when it comes back, no event has come.
#ifndef POWERCCL_DOORS_NCCL_UNTOLD_CALLS_H
#define POWERCCL_DOORS_NCCL_UNTOLD_CALLS_H
#include "doors/nccl/api_calls.h"
#include "doors/nccl/door.h"

namespace powerccl::nccl {

// All from the thread that makes the call. Only a call that is launched by itself can be told from others.
void untold_call_made(const ApiCall& call, bool captured);
void untold_launch_begins();
void untold_launch_ended(int result);
void untold_forget();

// The plugin is told of a call of `communicator`.
void plugin_told_of(Communicator* communicator);

}  // namespace powerccl::nccl
#endif
