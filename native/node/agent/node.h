// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "agent/options.h"

namespace powerccl::agent {

// The agent's life on one node, from `ready` to the end of its input. Returns the exit code: 0, or 1 when the run
// folder cannot be used.
int attend_node(const Options& options);

}  // namespace powerccl::agent
