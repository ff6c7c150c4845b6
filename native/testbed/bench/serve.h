// SPDX-License-Identifier: Apache-2.0
// A server of trials: ranks keep their processes and CUDA contexts. Each trial has an instance of NCCL of its own,
// which reads its variables. The supervisor reads requests on stdin and replies on stdout (docs/reference/bench.md).
#pragma once
#include <string>

#include "bench/rank.h"
#include "bench/report.h"

namespace powerccl::bench {

// Runs until the client has had enough. Returns kExitOk, or throws the Failure that ended it.
int serve(const Options& options, const Setting& setting);

// A rank of it: does what the board asks, until it asks to quit.
void serve_requests(const Options& options, Rank& rank);

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
