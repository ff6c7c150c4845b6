// SPDX-License-Identifier: Apache-2.0
// Calls that no plugin is told of: signals and waits for them (NCCL 2.29 and later), and in NCCL 2.28 collectives on
// copy engines, which it carries out before its profiler hears of them (seen with 2.28.9). The functions that stand
// before NCCL's see such calls. When they come back and no event has come, they are recorded.
#ifndef POWERCCL_ADAPTERS_NCCL_UNREPORTED_CALLS_H
#define POWERCCL_ADAPTERS_NCCL_UNREPORTED_CALLS_H
#include "adapters/nccl/adapter.h"
#include "adapters/nccl/api_calls.h"

namespace powerccl::nccl {

// All from the thread that makes the calls. Of a group, only where no plugin is told of any of its calls.
void unreported_call_made(const ApiCall& call, bool captured);
void unreported_launch_begins();
void unreported_launch_ended(int result);  // unreported_forget() comes next
void unreported_forget();

// The plugin is told of a call of `communicator`.
void plugin_reported(Communicator* communicator);

}  // namespace powerccl::nccl
#endif
