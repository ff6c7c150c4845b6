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

}  // namespace powerccl::bench
#endif
