// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace powerccl::bench::mpi {

double quantile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

Spread Spread::of(std::vector<double> values) {
  std::ranges::sort(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.mean = values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size()),
          .median = quantile(values, 0.5),
          .low = quantile(values, 0.25),
          .high = quantile(values, 0.75),
          .min = quantile(values, 0),
          .max = quantile(values, 1)};
}

json::Object Spread::json() const {
  json::Object object;
  object.add("mean", mean).add("median", median).add("low", low).add("high", high).add("min", min).add("max", max);
  return object;
}

}  // namespace powerccl::bench::mpi
