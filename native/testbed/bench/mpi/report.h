// SPDX-License-Identifier: Apache-2.0
// What rank 0 says of the tests: lines of JSON on stdout and, with --json, one object (docs/reference/bench.md). And
// what all tests measure with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "abi/host_clock.h"
#include "bench/json.h"
#include "bench/mpi/mpi_api.h"
#include "bench/mpi/options.h"

namespace powerccl::bench::mpi {

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
