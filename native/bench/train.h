// SPDX-License-Identifier: Apache-2.0
// Training steps worth replaying (computation times and gradient buckets of four models, each number with its source),
// and the replay of one, data-parallel, as each rank runs it.
#ifndef POWERCCL_BENCH_TRAIN_H
#define POWERCCL_BENCH_TRAIN_H
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/rank.h"

namespace powerccl::bench {

struct Model {
  std::string name;
  double forward_ms, backward_ms;  // at the platform's reference clock
  std::vector<size_t> buckets_bytes;
  Type type;
  Overlap overlap;
  std::string times_source, buckets_source;
};

const std::vector<Model>& models();
// The model that the options name, with what they replace. Throws Failure(kExitUsage) for an unknown name.
Model model_of(const TrainOptions& options);

void run_train(const Options& options, const Model& model, Rank& rank);

// Total length of the union of stretches, which may overlap.
uint64_t union_ns(std::vector<std::pair<uint64_t, uint64_t>> stretches);

}  // namespace powerccl::bench
#endif
