// SPDX-License-Identifier: Apache-2.0
// The sweep as each rank runs it: all ranks go through the same plan, agree on iteration counts, and rank 0 tells.
#ifndef POWERCCL_BENCH_SWEEP_H
#define POWERCCL_BENCH_SWEEP_H
#include <vector>

#include "bench/options.h"
#include "bench/plan.h"
#include "bench/rank.h"

namespace powerccl::bench {

void run_sweep(const Options& options, const std::vector<Point>& plan, Rank& rank);

// How many operations fill `min_time_s`, at least `least` and at most a million.
uint64_t iterations_for(double operation_s, double min_time_s, int least);
double median(std::vector<double> values);

}  // namespace powerccl::bench
#endif
