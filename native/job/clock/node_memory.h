// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "policy/node_state.h"

namespace powerccl {

// The memory that this host's ranks of a run share, made if it is not there. Null: it cannot be had, and each rank goes
// by what it sees itself.
NodeState* open_node_state(const char* run_folder);

}  // namespace powerccl
