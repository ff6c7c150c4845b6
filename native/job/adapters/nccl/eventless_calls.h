// SPDX-License-Identifier: Apache-2.0
// Collectives that NCCL carries out without kernel events: by symmetric kernels or by copy engines. NCCL 2.27 and later
// do so on buffers in symmetric windows. The plugin receives an event when such a call is made, and none afterwards. So
// the call is timed with a pair of CUDA events in its own stream.
//
// Which calls these are is learnt. Kernel events were asked for such a call, and no task came until its group ended. A
// kind of call (communicator, pattern, size class) gets a pair until it has twice come with a task.
#pragma once
#include "adapters/nccl/adapter.h"
#include "adapters/nccl/api_calls.h"

namespace powerccl::nccl {

// All from the thread that makes the call, until its group ends.

// A collective was made. `asked`: kernel events were asked for, so a call that has a kernel has a task event.
void eventless_call_made(Communicator* communicator, Handle group, Handle call, const CallSeen& seen, bool asked);
// Its task came: kernel events tell the rest.
void eventless_call_has_task(Communicator* communicator, Handle call);
// Copy engines carry it out.
void eventless_call_is_copied(Handle call);
// After the launch, and before the runtime is notified that the group ends. `counted_apart`: this NCCL has a thread of
// its own for kernel events (2.31 and later).
void eventless_calls_end(Runtime* runtime, Handle group, bool counted_apart);

// Kernel events are not to be had: all calls that no graph captures are timed with pairs from here on.
void time_calls_without_kernel_events();

// Whether a pair of events is within what timing such calls may cost. True spends it.
bool may_time_eventless_call();

// Calls that NCCL reports to no plugin: signals and waits for them (NCCL 2.29 and later). In NCCL 2.28 so are
// collectives on copy engines, which NCCL carries out before it calls its profiler (seen with 2.28.9). The interposed
// functions see such calls. When they return without an event, they are recorded.
// All from the thread that makes the calls. Of a group, only where NCCL reports none of its calls to a plugin.
void unreported_call_made(const ApiCall& call, bool captured);
void unreported_launch_begins();
void unreported_launch_ended(int result);  // unreported_forget() comes next
void unreported_forget();

// NCCL reported a call of `communicator` to the plugin.
void plugin_reported(Communicator* communicator);

}  // namespace powerccl::nccl
