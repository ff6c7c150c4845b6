// SPDX-License-Identifier: Apache-2.0
// NCCL's communicators by their address, as functions before its own see them come and go.
#pragma once
#include "adapters/nccl/adapter.h"
#include "adapters/nccl/preload_abi.h"

namespace powerccl::nccl {

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

}  // namespace powerccl::nccl
