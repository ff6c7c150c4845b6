// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace powerccl::agent {

// powerccl-agent --restore-all: restores every core that the folder's journal of this host marks and whose owner is
// dead, and prints one line each. Returns the exit code: 0, or 1 if a clock was not restored or there is no journal.
int restore_all(const std::string& run_folder);

}  // namespace powerccl::agent
