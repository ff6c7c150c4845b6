// SPDX-License-Identifier: Apache-2.0
// What GPUs compute: kernels of multiply-adds that last a given time, matrix products and memory traffic. Beside
// collectives, in a training step, and in a scenario's steps.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "bench/rank.h"

namespace powerccl::bench {

// A kernel that computes for a given time: PTX that the driver compiles for whatever GPU there is, so no nvcc is
// needed. On real GPUs its length is a calibrated number of loops; the emulator takes it from the parameter
// `declared_ns`.
class ComputeKernel {
 public:
  // Loads the kernel for the rank's GPU and, unless durations are declared, measures how fast it runs.
  ComputeKernel(Rank& rank, bool declared);

  // Computes for about `ms` at the clock it was calibrated at, or at the emulated platform's reference clock.
  // `memory`: share of it that no clock changes, on emulated GPUs; below 0: as is usual there.
  void enqueue(double ms, CUstream stream, double memory = -1);

  double iterations_per_ms() const { return iterations_per_ms_; }  // 0: declared
  unsigned blocks() const { return blocks_; }
  static constexpr unsigned kThreads = 256;

 private:
  void launch(uint64_t iterations, uint64_t declared_ns, CUstream stream);

  Rank& rank_;
  CUfunction function_;
  unsigned blocks_;
  double iterations_per_ms_ = 0;
};

class MatrixProduct;
class MemoryCopy;

// A product (Products says of which matrices) and a copy of kCopyBytes, which no cache holds. Kernels of cuBLAS keep
// their multiprocessors until they end, so a collective waits for one that has begun. Products must not last longer
// than those of training jobs: some tenths of a millisecond. Smaller ones would not fill a GPU.
inline constexpr uint64_t kCopyBytes = uint64_t{1} << 28;
inline constexpr double kEmulatedMs = 0.2;  // what either takes on an H100 at its power limit

// Equal units of work in one stream: one product, one copy, or one of each.
class Units {
 public:
  // `option`: of powerccl-bench, that asks for them. `stream`: null for one of their own.
  Units(Rank& rank, Beside kind, const Products& products, const char* option, CUstream stream = nullptr);
  ~Units();
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  void enqueue();  // one unit
  // On emulated GPUs alone: one unit that takes so long. `memory`: see ComputeKernel.
  void enqueue_emulated(double ms, double memory = -1);
  CUstream stream() const { return stream_; }

 private:
  Rank& rank_;
  CUstream stream_;
  bool owns_;
  std::unique_ptr<MatrixProduct> product_;
  std::unique_ptr<MemoryCopy> copy_;
};

// What a scenario's `compute` enqueues: kernels of multiply-adds, or units of matrix products and memory traffic.
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
  // What is enqueued until end_graph() is of a graph, which may be launched any number of times. So it neither takes
  // over the rest from before nor leaves one.
  void begin_graph();
  void end_graph();
  // For the report.
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
