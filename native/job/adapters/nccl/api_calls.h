// SPDX-License-Identifier: Apache-2.0
// Reports NCCL's public functions to the runtime. If NCCL has no profiler plugin of ours (before 2.27, or by the user's
// choice), they are the only source. Otherwise they add only what the plugin interface lacks.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "adapters/nccl/adapter.h"
#include "adapters/nccl/preload_abi.h"
#include "runtime/runtime.h"

namespace powerccl::nccl {

// NCCL's communicators by their address, as functions before its own see them come and go.
// The runtime's for NCCL's; null if a plugin reports it, or if it is not recorded. One that was not ready
// when it came (a non-blocking one) is brought up here.
Communicator* communicator_of(void* comm);

// The plugin's for NCCL's, once a call has shown it, or where only one can be meant. Null: not known.
Communicator* plugins_communicator(void* comm);
void plugins_communicator_is(void* comm, Communicator* communicator);

// One will be in `*slot` when the present function, or the outermost group, has returned. `id` is the same on all its
// ranks.
void communicator_coming(void** slot, uint64_t id);
// The call that creates communicators has returned.
void communicators_came(int result);

uint64_t id_of(const UniqueId& id);
uint64_t id_of_all();
// Of what comes of splitting `parent` for the next time.
uint64_t id_of_split(void* parent, int color);
// Of `parent` without some ranks.
uint64_t id_without(void* parent, const int* ranks, int count);

// What the communicator has been given may never run.
void communicator_given_up(void* comm);

// NCCL is about to end it, and has: taken off the list before, because its address may be the next one's.
Communicator* communicator_taken(void* comm);
void communicator_gone(Communicator* communicator);

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
