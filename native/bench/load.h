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

// A product (Products says of which matrices) and a copy of kCopyBytes, which no cache holds. cuBLAS's kernels keep
// their multiprocessors until they end, so a collective waits for one that has begun: products must not last longer
// than those of training jobs, some tenths of a millisecond. Smaller ones would not fill a GPU.
inline constexpr uint64_t kCopyBytes = uint64_t{1} << 28;
inline constexpr double kEmulatedMs = 0.2;  // what either takes on an H100 at its power limit

// Equal units of work in one stream: one product, one copy, or one of each.
class Units {
 public:
  // `option`: of powerccl-bench, that asks for them.
  Units(Rank& rank, Beside kind, const Products& products, const char* option, CUstream stream);
  ~Units();
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  void enqueue();  // one unit
  // On emulated GPUs alone: one unit that takes so long.
  void enqueue_emulated(double ms);

 private:
  std::unique_ptr<MatrixProduct> product_;
  std::unique_ptr<MemoryCopy> copy_;
};

// Units in a stream of their own.
class Load {
 public:
  Load(Rank& rank, Beside kind, const Products& products);
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
