// SPDX-License-Identifier: Apache-2.0
// The command line of powerccl-bench-mpi. Sizes and sweeps as in powerccl-bench.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/pattern.h"

namespace powerccl::bench::mpi {

enum class Test {
  kLatency,
  kBandwidth,
  kBothWays,
  kBarrier,
  kBroadcast,
  kReduce,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kWait,
  kStencil,
};

struct TestInfo {
  const char* name;
  Test test;
  const char* mode;  // the kind of test, in JSON
  std::optional<Pattern> pattern;
  bool reduces() const { return pattern && info(*pattern).reduces; }  // counts floats rather than bytes
};
const TestInfo& info_of(Test test);

struct WaitOptions {
  double wait_us = 1e6;
  int repeat = 5;
  bool collective = false;
};

struct StencilOptions {
  double step_us = 20000;  // of a rank's computation in one iteration
  int iterations = 50;
  int rows = 128, columns = 512;  // of a rank: small enough to stay in its cache
  int sweeps = 0;                 // over its rows in one iteration; 0: as many as --step-us takes
  bool sendrecv = true;
};

struct Options {
  Test test = Test::kWait;
  std::vector<std::string> command;
  std::string says;  // --help, --version: what to print and end
  std::string library, json;
  size_t min_bytes = 1, max_bytes = 1 << 20, step_bytes = 0;
  double factor = 2;
  int iterations = 0, warmup = -1;  // 0, -1: by size, as OSU's
  int window = 64;                  // messages in flight, for bandwidth
  int back_to_back = 1;             // calls timed together; above 1 there is no barrier between them
  bool check = true;
  double compute_us = 0, imbalance_us = 0, imbalance_pct = 0;
  WaitOptions wait;
  StencilOptions stencil;

  // Computation of `rank` before an operation: the last of them has the whole imbalance.
  double compute_of_us(int rank, int ranks) const {
    const double share = ranks > 1 ? static_cast<double>(rank) / (ranks - 1) : 0;
    return compute_us + share * (imbalance_us + compute_us * imbalance_pct / 100);
  }
};

// Throws Failure(kExitUsage).
Options parse_options(int argc, char** argv);
// Sizes of the sweep, whole elements of `element_bytes`.
std::vector<size_t> sizes_of(const Options& options, size_t element_bytes);

// OSU's numbers: fewer of long messages.
struct Iterations {
  int measured, warmup;
};
Iterations iterations_of(const Options& options, size_t bytes);

}  // namespace powerccl::bench::mpi
