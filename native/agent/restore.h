// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "agent/guard.h"

namespace powerccl::agent {

// powerccl-agent --restore-all: resets every GPU that the folder's journal of this host marks and whose owner is dead,
// and prints one line each. Returns the exit code: 0, or 1 if a clock was not reset or there is no journal to read.
int restore_all(const std::string& run_folder, const ResetClock& reset, bool dry);

}  // namespace powerccl::agent
