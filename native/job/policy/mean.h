// SPDX-License-Identifier: Apache-2.0
// A mean of what was seen, and how well it is known (Welford's sums).
#pragma once
#include <stdint.h>

namespace powerccl {

struct Mean {
  uint32_t count = 0;
  double mean = 0, squares = 0;

  void add(double value) {
    ++count;
    const double off = value - mean;
    mean += off / count;
    squares += off * (value - mean);
  }
  double variance_of_mean() const { return count > 1 ? squares / (count - 1) / count : 0; }
};

}  // namespace powerccl
