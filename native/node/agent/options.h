// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace powerccl::agent {

struct Options {
  std::string run_folder;
  int64_t interval_ns = 20'000'000;
  bool sample = true;
  std::string job_environment;  // written into the head of the power file
};

// Where sysfs is: POWERCCL_SYSFS, or /sys.
std::string sysfs_root();

// Reads the command line and POWERCCL_RUN_FOLDER. After --help, or a mistake that it has reported, it returns the exit
// code.
std::optional<int> parse_options(int argc, const char* const* argv, Options* options);

}  // namespace powerccl::agent
