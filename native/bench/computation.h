// SPDX-License-Identifier: Apache-2.0
// What a scenario's `compute` enqueues: kernels of multiply-adds, or units of matrix products and memory traffic.
#ifndef POWERCCL_BENCH_COMPUTATION_H
#define POWERCCL_BENCH_COMPUTATION_H
#include <memory>
#include <set>
#include <vector>

#include "bench/compute_kernel.h"
#include "bench/load.h"

namespace powerccl::bench {

// How many whole units make up the times asked for, one after the other: the rest of each is left to the next.
class WholeUnits {
 public:
  explicit WholeUnits(double unit_ms) : unit_ms_(unit_ms) {}
  int take(double ms);

 private:
  double unit_ms_, carry_ms_ = 0;
};

class Computation {
 public:
  // All ranks together. `computing`: the streams, by their place among `streams`, in which there is computation.
  Computation(Rank& rank, Beside kind, const Products& products, const std::vector<CUstream>& streams,
              const std::set<size_t>& computing);

  // `memory`: see ComputeKernel.
  void enqueue(double ms, size_t stream, double memory = -1);
  // What is enqueued until end_graph() is of a graph: it neither takes over the rest from before nor leaves one, since
  // nobody knows how often the graph will be launched.
  void begin_graph();
  void end_graph();
  // What there is to know of it, for the report.
  void tell(StartNews& start) const;

 private:
  void calibrate(const std::set<size_t>& computing);
  double time_units(Units& units, CUstream stream, int count);

  Rank& rank_;
  const std::vector<CUstream>& streams_;
  std::unique_ptr<ComputeKernel> kernel_;      // null with units
  std::vector<std::unique_ptr<Units>> units_;  // by stream
  double unit_ms_ = 0;                         // 0: emulated, or no units
  std::vector<WholeUnits> whole_, outside_;    // by stream; the latter wait while a graph is captured
};

}  // namespace powerccl::bench
#endif
