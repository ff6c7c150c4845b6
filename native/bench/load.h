// SPDX-License-Identifier: Apache-2.0
// What a GPU computes beside collectives, and in a scenario's steps: matrix products, memory traffic, or both in turn.
#ifndef POWERCCL_BENCH_LOAD_H
#define POWERCCL_BENCH_LOAD_H
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bench/rank.h"

namespace powerccl::bench {

class MatrixProduct;
class MemoryCopy;

struct UnitSize {
  int side;                                      // of a product's matrices
  uint64_t bytes;                                // of a copy; beyond every cache
  double emulated_product_ms, emulated_copy_ms;  // what they take on an H100 at its power limit
  const char* option;                            // that asks for them
};
// A layer's products of some thousand tokens have this size. Products half as wide no longer fill a Hopper GPU, those
// twice as wide last 12 ms and leave few units in a measurement.
inline constexpr UnitSize kUnitsBeside{8192, uint64_t{1} << 30, 1.5, 0.8, "--beside"};
// Fine enough to make up a step's computation of a few milliseconds, although such products do not quite fill a GPU.
inline constexpr UnitSize kUnitsOfStep{4096, uint64_t{1} << 28, 0.2, 0.2, "--compute"};

// Equal units of work in one stream: one product, one copy, or one of each.
class Units {
 public:
  Units(Rank& rank, Beside kind, const UnitSize& size, CUstream stream);
  ~Units();
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  void enqueue();  // one unit
  // On emulated GPUs alone: one unit that takes so long.
  void enqueue_emulated(double ms);

 private:
  UnitSize size_;
  std::unique_ptr<MatrixProduct> product_;
  std::unique_ptr<MemoryCopy> copy_;
};

// Units in a stream of their own.
class Load {
 public:
  Load(Rank& rank, Beside kind);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void enqueue() { units_->enqueue(); }  // one
  CUstream stream() const { return stream_; }

 private:
  Rank& rank_;
  CUstream stream_ = nullptr;
  std::unique_ptr<Units> units_;
};

}  // namespace powerccl::bench
#endif
