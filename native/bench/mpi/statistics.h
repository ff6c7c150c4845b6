// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_BENCH_MPI_STATISTICS_H
#define POWERCCL_BENCH_MPI_STATISTICS_H
#include <vector>

#include "bench/json.h"

namespace powerccl::bench::mpi {

// Of a list of measurements; NaN where the list was empty.
struct Spread {
  double mean, median, low, high, min, max;  // low and high: the quartiles
  static Spread of(std::vector<double> values);
  json::Object json() const;
};

// Where `part` (0 to 1) of the sorted values lie below, between neighbours by their distance.
double quantile(const std::vector<double>& sorted, double part);

}  // namespace powerccl::bench::mpi
#endif
