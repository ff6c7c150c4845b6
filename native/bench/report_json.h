// SPDX-License-Identifier: Apache-2.0
// The objects of README.md that sweeps and servers have in common.
#ifndef POWERCCL_BENCH_REPORT_JSON_H
#define POWERCCL_BENCH_REPORT_JSON_H
#include <optional>
#include <string>

#include "bench/beside_cost.h"
#include "bench/json.h"
#include "bench/launch.h"
#include "bench/plan.h"
#include "bench/report.h"
#include "bench/sampler.h"

namespace powerccl::bench {

// What is common to every mode. `start` and `sampler` are null while no rank stands.
json::Object header_object(const Options& options, const Setting& setting, const Launch& launch, double started_unix_s,
                           const StartNews* start, Sampler* sampler);
// GB/s by NCCL tests' size; 0 where nothing took time.
double algbw_gbs(const Point& point, const PointNews& news);
// Puts what the emulator told of the loop's energy in place of what was sampled; on real GPUs nothing.
void take_emulated_energy(const PointNews& news, int ranks, Window& window);
// `cost`: of a point beside computation.
json::Object point_object(const Point& point, const PointNews& news, const Window& window, int ranks, bool clock_set,
                          const std::optional<BesideCost>& cost = std::nullopt);

inline std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

}  // namespace powerccl::bench
#endif
