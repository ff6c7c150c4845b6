// SPDX-License-Identifier: Apache-2.0
// A kernel that computes for a given time: PTX that the driver compiles for whatever GPU there is, so no nvcc is
// needed. On real GPUs its length is a calibrated number of loops; the emulator takes it from the parameter
// `declared_ns`.
#ifndef POWERCCL_BENCH_COMPUTE_KERNEL_H
#define POWERCCL_BENCH_COMPUTE_KERNEL_H
#include <cstdint>

#include "bench/rank.h"

namespace powerccl::bench {

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
  CUfunction function_ = nullptr;
  unsigned blocks_;
  double iterations_per_ms_ = 0;
};

}  // namespace powerccl::bench
#endif
