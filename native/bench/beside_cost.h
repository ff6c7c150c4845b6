// SPDX-License-Identifier: Apache-2.0
// What a collective costs beside computation.
#ifndef POWERCCL_BENCH_BESIDE_COST_H
#define POWERCCL_BENCH_BESIDE_COST_H
#include <optional>

namespace powerccl::bench {

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
