// SPDX-License-Identifier: Apache-2.0
#include "agent/options.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace powerccl::agent {

const char* const kUsage =
    "usage: powerccl-agent --run-folder DIR [options]\n"
    "       powerccl-agent --restore-all [--run-folder DIR]\n"
    "\n"
    "Samples power, energy and clocks of this node's GPUs into DIR/power-<host>.csv.\n"
    "Samples energy and time of its processors into DIR/cpu-<host>.csv.\n"
    "Restores core clocks that an MPI rank left lowered when it died. `powerccl run`\n"
    "starts one agent per node. The agent prints `ready`, and runs until stdin ends\n"
    "or SIGTERM. It then stays until no rank lives that may lower a clock.\n"
    "\n"
    "  --run-folder DIR   folder of samples and clock journal (POWERCCL_RUN_FOLDER)\n"
    "  --interval-ms N    time between samples in ms, 1 to 60000 (20);\n"
    "                     at least 100 for processors\n"
    "  --no-sample        take no samples, only restore clocks\n"
    "  --restore-all      restore each core that a dead process left lowered, by\n"
    "                     DIR's journal, and end. Run it by hand, on the node, after\n"
    "                     its container or its agent was killed\n"
    "\n"
    "exit codes: 0 success; 1 a fault, or a clock could not be restored; 2 wrong usage\n";

namespace {

bool parse_interval(std::string_view text, int64_t* interval_ns) {
  int64_t milliseconds = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), milliseconds);
  if (code != std::errc{} || end != text.data() + text.size() || milliseconds < 1 || milliseconds > 60000) return false;
  *interval_ns = milliseconds * 1'000'000;
  return true;
}

}  // namespace

std::string sysfs_root() {
  const char* sysfs = std::getenv("POWERCCL_SYSFS");
  return sysfs && *sysfs ? sysfs : "/sys";
}

bool parse_options(int argc, const char* const* argv, Options* options, std::string* message) {
  const std::string see_help = "\nhint: powerccl-agent --help";
  if (const char* folder = std::getenv("POWERCCL_RUN_FOLDER")) options->run_folder = folder;
  for (int i = 1; i < argc; ++i) {
    std::string_view name = argv[i];
    std::string_view value;
    bool has_value = false;
    if (size_t equals = name.find('='); name.starts_with("--") && equals != name.npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
      has_value = true;
    }
    bool wants_value = name == "--run-folder" || name == "--interval-ms";
    if (has_value && !wants_value) {
      *message = std::string(name) + " takes no value" + see_help;
      return false;
    }
    if (wants_value && !has_value) {
      if (i + 1 == argc) {
        *message = std::string(name) + " needs a value" + see_help;
        return false;
      }
      value = argv[++i];
    }
    if (name == "--run-folder") {
      options->run_folder = value;
    } else if (name == "--interval-ms") {
      if (!parse_interval(value, &options->interval_ns)) {
        *message = "--interval-ms " + std::string(value) + ": expected a whole number from 1 to 60000" + see_help;
        return false;
      }
    } else if (name == "--no-sample") {
      options->sample = false;
    } else if (name == "--restore-all") {
      options->mode = Mode::kRestoreAll;
    } else if (name == "--help" || name == "-h") {
      options->mode = Mode::kHelp;
    } else {
      *message = "unknown option " + std::string(argv[i]) + see_help;
      return false;
    }
  }
  bool needs_folder = options->mode == Mode::kGuard || options->mode == Mode::kRestoreAll;
  if (needs_folder && options->run_folder.empty()) {
    *message = "no run folder given\nhint: powerccl-agent --run-folder DIR, or set POWERCCL_RUN_FOLDER";
    return false;
  }
  return true;
}

}  // namespace powerccl::agent
