// SPDX-License-Identifier: Apache-2.0
// What a GPU computes while collectives run beside it: matrix products, memory traffic, or both in turn.
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

// A stream of its own with equal units of work: one product, one copy, or one of each.
class Load {
 public:
  Load(Rank& rank, Beside kind);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void enqueue();  // one unit
  CUstream stream() const { return stream_; }

 private:
  Rank& rank_;
  CUstream stream_ = nullptr;
  std::unique_ptr<MatrixProduct> product_;
  std::unique_ptr<MemoryCopy> copy_;
};

}  // namespace powerccl::bench
#endif
