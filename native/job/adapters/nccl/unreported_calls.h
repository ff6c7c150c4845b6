// SPDX-License-Identifier: Apache-2.0
// Calls that NCCL reports to no plugin: signals and waits for them (NCCL 2.29 and later). In NCCL 2.28 so are
// collectives on copy engines, which NCCL carries out before it calls its profiler (seen with 2.28.9). The interposed
// functions see such calls. When they return without an event, they are recorded.
#pragma once
#include "adapters/nccl/adapter.h"
#include "adapters/nccl/api_calls.h"

namespace powerccl::nccl {

// All from the thread that makes the calls. Of a group, only where NCCL reports none of its calls to a plugin.
void unreported_call_made(const ApiCall& call, bool captured);
void unreported_launch_begins();
void unreported_launch_ended(int result);  // unreported_forget() comes next
void unreported_forget();

// NCCL reported a call of `communicator` to the plugin.
void plugin_reported(Communicator* communicator);

}  // namespace powerccl::nccl
