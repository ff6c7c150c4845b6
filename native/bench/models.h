// SPDX-License-Identifier: Apache-2.0
// Training steps worth replaying: computation times and gradient buckets of four models, each number with its source.
#ifndef POWERCCL_BENCH_MODELS_H
#define POWERCCL_BENCH_MODELS_H
#include <string>
#include <vector>

#include "bench/options.h"

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

}  // namespace powerccl::bench
#endif
