// SPDX-License-Identifier: Apache-2.0
// A server's rank: does what the board asks, until it asks to quit.
#ifndef POWERCCL_BENCH_SERVE_RANKS_H
#define POWERCCL_BENCH_SERVE_RANKS_H
#include "bench/rank.h"

namespace powerccl::bench {

void serve_requests(const Options& options, Rank& rank);

}  // namespace powerccl::bench
#endif
