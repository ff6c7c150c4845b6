// SPDX-License-Identifier: Apache-2.0
// The command line. NCCL tests' options keep their letters and meanings; sizes take the suffixes K, M, G (of 1024).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/pattern.h"

namespace powerccl::bench {

enum class Mode { kSweep, kScenario, kServe };

inline constexpr int kClockAsFound = 0;

struct Options {
  Mode mode = Mode::kSweep;
  std::vector<std::string> command;
  std::string says;  // --help, --version: what to print and end

  std::vector<Pattern> patterns;
  size_t min_bytes = 131072, max_bytes = 67108864, step_bytes = 0;
  double factor = 2;
  int iterations = 20, warmup = 1, check = 1, graph_launches = 0;
  int repeats = 1;  // of the timed loop; only a server's requests say another number
  bool blocking = false, in_place = false, events = false, grouped = false;
  std::vector<Type> types{Type::kFloat32};
  std::vector<Op> ops{Op::kSum};
  int root = 0;          // -1: each rank in turn
  int registration = 0;  // 2: buffers in symmetric windows
  std::vector<Way> ways{Way::kAsGiven};
  std::vector<Beside> besides{Beside::kNothing};  // nothing is always among them, and first
  std::vector<int> clocks_mhz{kClockAsFound};

  int gpus = 0;  // 0: all there are
  bool threads = false;
  int launched_by = 0;    // the process that started all ranks; 0: this one's parent
  int clock_socket = -1;  // inherited, to the process that sets clocks; -1: none does
  bool energy = true;
  double min_time_s = -1;  // -1: 0.25 emulated, 1.0 real, 0 without energy
  double settle_s = 0.1;   // collectives run unmeasured after a change of clock
  int sample_ms = 0;       // 0: 2 emulated, 10 real, where a reading takes milliseconds itself
  int timeout_s = 300;     // for each point or iteration, and for start-up; 0: none
  std::string nccl, rendezvous, json, json_lines;
  bool resume = false;

  int trials_per_process = 32;

  std::string scenario;  // the file
  int scenario_warmup = 2;
  std::optional<int> scenario_iterations;  // else the file's own
  std::optional<double> seconds;           // as many iterations as take about so long
  Products products;
  Beside compute = Beside::kNothing;  // what a scenario's computation consists of; nothing: multiply-adds

  bool wants_clock() const { return clocks_mhz.size() > 1 || clocks_mhz.front() != kClockAsFound; }
};

// Throws Failure(kExitUsage) that names the option, and how it should look.
Options parse_options(int argc, char** argv);

// "1590,1500", "1590:300:15" (first:last:step, either direction), "default".
std::vector<int> parse_clocks(const std::string& text);

}  // namespace powerccl::bench
