// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace powerccl::agent {

enum class Mode { kGuard, kRestoreAll, kCheck, kHelp };

struct Options {
  Mode mode = Mode::kGuard;
  std::string run_folder;
  int64_t interval_ns = 20'000'000;
  bool sample = true;
  bool dry = false;  // no setter of NVML may be called
};

extern const char* const kUsage;

// Where sysfs is: POWERCCL_SYSFS, or /sys.
std::string sysfs_root();

// Reads the command line, POWERCCL_RUN_FOLDER and POWERCCL_CLOCKS (`dry` there wins over every option).
// On a mistake returns false with a message that ends in a hint.
bool parse_options(int argc, const char* const* argv, Options* options, std::string* message);

}  // namespace powerccl::agent
