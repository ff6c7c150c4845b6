// SPDX-License-Identifier: Apache-2.0
// One point of a sweep as each rank measures it: all ranks go through the same steps and agree on iteration counts.
#pragma once
#include <optional>
#include <vector>

#include "bench/computation.h"
#include "bench/emulated_time.h"
#include "bench/options.h"
#include "bench/plan.h"

namespace powerccl::bench {

class Measurement {
 public:
  // The rank's buffers must hold the point (reserve_for).
  Measurement(const Options& options, const Point& point, Rank& rank);
  // Makes operations for about so long, unmeasured.
  void run_for(double seconds);
  // What rank 0 has to tell; `index` is left to the caller.
  PointNews measure();
  // The same beside computation, of which a unit takes `unit_us` alone.
  PointNews measure_beside(Units& load, double unit_us);
  // That computation alone; `beside` is left to the caller.
  LoadNews measure_load(Units& load);

 private:
  void one();
  void many(uint64_t operations);
  double estimate();
  int64_t check();
  void take_times(PointNews& news);
  void repeat(PointNews& news);
  void time_loop(PointNews& news);
  void begin(PointNews& news);
  void end(PointNews& news, size_t last);
  double elapsed_us() const;
  double loop_joules();
  void time_queued(PointNews& news);
  void time_blocking(PointNews& news);
  void time_each(PointNews& news);
  void time_graph(PointNews& news);
  double time_single();

  const Options& options_;
  Rank& rank_;
  Board& board_;
  Call call_;
  Buffers buffers_;
  EmulatedTime emulated_;
  size_t last_event_ = 1;
  double blocked_us_ = 0, blocked_joules_ = 0;  // time_each's
};

// Time and mean power, of an operation or of a unit of computation.
struct TimeAndPower {
  double us;
  std::optional<double> watts_per_gpu;  // nothing: not known
};

struct BesideCost {
  TimeAndPower alone;  // a unit of the computation alone
  double slowed_pct;   // of the computation; negative within noise
  // What is more than the same computation takes alone, of one collective: time in microseconds, joules of a GPU.
  double added_us;
  std::optional<double> added_joules;
};

// `operation`: one collective, at the power of everything; `unit_us`: a unit of the computation beside it.
BesideCost beside_cost(const TimeAndPower& operation, double unit_us, const TimeAndPower& alone);

void reserve_for(const std::vector<Point>& points, Rank& rank);

// How many operations fill `min_time_s`, at least `least` and at most a million.
uint64_t iterations_for(double operation_s, double min_time_s, int least);
double median(std::vector<double> values);

// The sweep as each rank runs it: all go through the same plan, and rank 0 tells.
void run_sweep(const Options& options, const std::vector<Point>& plan, Rank& rank);

}  // namespace powerccl::bench
