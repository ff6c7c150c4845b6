// SPDX-License-Identifier: Apache-2.0
// What rank 0 says of the tests: lines of JSON on stdout and, with --json, one object (docs/reference/bench.md). And
// what all tests measure with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/host_clock.h"
#include "bench/json.h"
#include "bench/mpi/mpi_api.h"
#include "bench/pattern.h"

namespace powerccl::bench::mpi {

// The command line of powerccl-bench-mpi. Sizes and sweeps as in powerccl-bench.
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

inline double us_since(int64_t begin_ns) {
  return 1e-3 * static_cast<double>(host_now_ns() - begin_ns);
}
double process_cpu_s();      // of all threads of the process: a library may have its progress thread
void compute_us(double us);  // keeps the core busy until the time has passed

// Of a list of measurements; NaN where the list was empty.
struct Spread {
  double mean, median, low, high, min, max;  // low and high: the quartiles
  static Spread of(std::vector<double> values);
  json::Raw json() const;
};

class Report {
 public:
  Report(const Options& options, const Mpi& mpi);
  // The result of a size, wait or rank. Rank 0 writes its line.
  void add(const json::Object& result);
  void summarise(const json::Object& summary) { summary_ = summary; }
  void count_wrong(double elements) { wrong_ += elements; }
  bool wrong() const { return wrong_ > 0; }
  // Ends the lines and writes the JSON file on rank 0. Throws Failure.
  void conclude() const;

 private:
  void write_line(const char* type, const json::Object& object) const;

  const Options& options_;
  const Mpi& mpi_;
  double wrong_ = 0;
  int64_t started_ns_;
  json::Object header_;
  std::vector<json::Raw> results_;
  json::Object summary_;
};

// The tests. Each is called by all ranks.
void run_collective(const Options& options, const Mpi& mpi, Report& report);
void run_point_to_point(const Options& options, const Mpi& mpi, Report& report);
void run_wait(const Options& options, const Mpi& mpi, Report& report);
void run_stencil(const Options& options, const Mpi& mpi, Report& report);

}  // namespace powerccl::bench::mpi
