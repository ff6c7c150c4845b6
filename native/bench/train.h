// SPDX-License-Identifier: Apache-2.0
// The replay of a data-parallel training step as each rank runs it.
#ifndef POWERCCL_BENCH_TRAIN_H
#define POWERCCL_BENCH_TRAIN_H
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/models.h"
#include "bench/rank.h"

namespace powerccl::bench {

void run_train(const Options& options, const Model& model, Rank& rank);

// Total length of the union of stretches, which may overlap.
uint64_t union_ns(std::vector<std::pair<uint64_t, uint64_t>> stretches);

}  // namespace powerccl::bench
#endif
