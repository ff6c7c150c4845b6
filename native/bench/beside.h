// SPDX-License-Identifier: Apache-2.0
// Collectives and computation on one GPU at the same time, in a stream each, and what either takes then.
#ifndef POWERCCL_BENCH_BESIDE_H
#define POWERCCL_BENCH_BESIDE_H
#include <functional>
#include <optional>

#include "bench/computation.h"
#include "bench/emulated_time.h"

namespace powerccl::bench {

class BesideMeasurement {
 public:
  BesideMeasurement(Rank& rank, EmulatedTime& emulated, Load& load) : rank_(rank), emulated_(emulated), load_(load) {}

  // The computation by itself for about `seconds`: all ranks together.
  LoadNews alone(double seconds);
  // Fills times, energy and the number of operations of `news`. `operation` enqueues one, which takes `operation_us` by
  // itself, as a unit of the computation takes `unit_us`.
  void both(double seconds, const std::function<void()>& operation, double operation_us, double unit_us,
            PointNews& news);

 private:
  LoadNews run_alone(size_t units);
  // What was enqueued, and the events behind each part of it.
  struct Enqueued {
    uint64_t operations_a_part;
    size_t parts, units;
    uint64_t start_ns;
  };
  Enqueued enqueue(double seconds, const std::function<void()>& operation, double operation_us, double unit_us);
  // The part of the time in which both ran, on this rank.
  struct Found {
    double operation_us, unit_us, from_ms, to_ms;
    double joules;  // of the GPU, an operation; negative: not emulated
    uint64_t operations;
  };
  Found find(const Enqueued& enqueued);
  CUevent part_event(size_t index) { return rank_.event(2 * index + 2); }
  CUevent unit_event(size_t index) { return rank_.event(2 * index + 3); }
  double at_ms(CUevent event) const { return rank_.elapsed_ms(rank_.event(0), event); }

  Rank& rank_;
  EmulatedTime& emulated_;
  Load& load_;
};

// Time and mean power, of an operation or of a unit of computation.
struct TimeAndPower {
  double us;
  std::optional<double> watts_per_gpu;  // nothing: not known
};

struct BesideCost {
  TimeAndPower alone;  // the computation by itself, a unit
  double slowed_pct;   // of the computation; negative within noise
  // What is more than the same computation takes by itself, of one collective: time in microseconds, joules of a GPU.
  double added_us;
  std::optional<double> added_joules;
};

// `operation`: one collective, at the power of everything; `unit_us`: a unit of the computation beside it.
BesideCost beside_cost(const TimeAndPower& operation, double unit_us, const TimeAndPower& alone);

}  // namespace powerccl::bench
#endif
