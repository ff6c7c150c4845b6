// SPDX-License-Identifier: Apache-2.0
#include "agent/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace powerccl::agent {

std::string sysfs_root() {
  const char* sysfs = std::getenv("POWERCCL_SYSFS");
  return sysfs && *sysfs ? sysfs : "/sys";
}

std::optional<int> parse_options(int argc, const char* const* argv, Options* options) {
  CLI::App app(
      "Samples power, energy and clocks of this node's GPUs into DIR/power-<host>.csv, and energy\n"
      "and time of its processors into DIR/cpu-<host>.csv. `powerccl run` starts one agent per\n"
      "node. The agent prints `ready`, and runs until stdin ends, or SIGTERM unless that was\n"
      "blocked when it started.",
      "powerccl-agent");
  app.add_option("--run-folder", options->run_folder, "folder of samples")
      ->envname("POWERCCL_RUN_FOLDER")
      ->required()
      ->type_name("DIR");
  int64_t interval_ms = options->interval_ns / 1'000'000;
  app.add_option("--interval-ms", interval_ms, "time between samples; at least 100 for processors")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--job-environment", options->job_environment, "what says which GPUs the job sees, for the power file")
      ->type_name("JSON");
  app.add_flag_callback(
      "--no-sample", [options] { options->sample = false; }, "take no samples, only watch the job's processes");
  app.footer("exit codes: 0 success; 1 a fault; 2 wrong usage");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options->interval_ns = interval_ms * 1'000'000;
  return std::nullopt;
}

}  // namespace powerccl::agent
