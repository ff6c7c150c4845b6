// SPDX-License-Identifier: Apache-2.0
// The lines that a server understands (README.md has the protocol).
#ifndef POWERCCL_BENCH_REQUESTS_H
#define POWERCCL_BENCH_REQUESTS_H
#include <string>

#include "bench/board.h"
#include "bench/options.h"

namespace powerccl::bench {

enum class Verb { kSet, kClear, kOpen, kMeasure, kClose, kQuit };

struct Command {
  Verb verb;
  std::string name, value;  // set: both; open: the trial's name
  Point point;              // measure
  Measuring measuring;
  bool energy;
};

// `options` holds what a measurement takes where the line does not say otherwise. Throws Failure(kExitUsage).
Command parse_command(const std::string& line, const Options& options, int ranks);

// Whether a client may set the variable: NCCL's and ours.
bool may_set(const std::string& name);

}  // namespace powerccl::bench
#endif
