// SPDX-License-Identifier: Apache-2.0
// The objects of docs/reference/bench.md that sweeps and servers have in common, and which machine was measured: what a
// file of points is tied to, so that --resume never mixes two.
#ifndef POWERCCL_BENCH_REPORT_JSON_H
#define POWERCCL_BENCH_REPORT_JSON_H
#include <optional>
#include <string>

#include "bench/beside.h"
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

// host, gpu_models, nvlinks, driver, nccl_version, nccl_variables and emulated_platform; the last six are
// null while no rank stands (`start` and `sampler` are null).
json::Object machine_object(const Board& board, const StartNews* start, const Sampler* sampler);

// Throws Failure(kExitUsage) where the --json-lines file `path` holds lines of another machine than `here`, or does not
// say of which; names all fields that differ.
void check_same_machine(const std::string& path, const json::Object& here);

}  // namespace powerccl::bench
#endif
