// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace powerccl::agent {

enum class Mode { kGuard, kRestoreAll, kHelp };

struct Options {
  Mode mode = Mode::kGuard;
  std::string run_folder;
  int64_t interval_ns = 20'000'000;
  bool sample = true;
};

extern const char* const kUsage;

// Where sysfs is: POWERCCL_SYSFS, or /sys.
std::string sysfs_root();

// Reads the command line and POWERCCL_RUN_FOLDER. On a mistake returns false with a message that ends in a hint.
bool parse_options(int argc, const char* const* argv, Options* options, std::string* message);

}  // namespace powerccl::agent
