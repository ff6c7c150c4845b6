// SPDX-License-Identifier: Apache-2.0
#include "bench/timeline.h"

#include <algorithm>
#include <cmath>

#include "bench/train.h"

namespace powerccl::bench {
namespace {

constexpr double kUnknownMs = -1;

uint64_t to_ns(double ms) {
  return static_cast<uint64_t>(std::llround(std::max(ms, 0.0) * 1e6));
}

}  // namespace

IterationTimes Timeline::times() const {
  std::vector<Stretch> stretches;
  stretches.reserve(marked_.size());
  for (const Marked& each : marked_) {
    stretches.push_back({to_ns(elapsed_ms(each.begin)), to_ns(elapsed_ms(each.end)), each.doing == Doing::kComputing});
  }
  IterationTimes times = times_of(stretches);
  if (unseen_) times.compute_ms = times.communication_ms = times.exposed_ms = kUnknownMs;
  return times;
}

IterationTimes times_of(const std::vector<Stretch>& stretches) {
  std::vector<std::pair<uint64_t, uint64_t>> computing, communicating, either;
  uint64_t end = 0;
  for (const Stretch& each : stretches) {
    (each.computes ? computing : communicating).emplace_back(each.begin, each.end);
    either.emplace_back(each.begin, each.end);
    end = std::max(end, each.end);
  }
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const uint64_t compute_ns = union_ns(computing);
  return {ms(end), ms(compute_ns), ms(union_ns(communicating)), ms(union_ns(either) - compute_ns)};
}

}  // namespace powerccl::bench
