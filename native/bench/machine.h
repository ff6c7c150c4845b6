// SPDX-License-Identifier: Apache-2.0
// Which machine was measured: what a file of points is tied to, so that --resume never mixes two.
#ifndef POWERCCL_BENCH_MACHINE_H
#define POWERCCL_BENCH_MACHINE_H
#include <string>

#include "bench/board.h"
#include "bench/json.h"
#include "bench/sampler.h"

namespace powerccl::bench {

// host, gpu_models, nvlinks, driver, nccl_version, nccl_variables and emulated_platform of README.md; the last six are
// null while no rank stands (`start` and `sampler` are null).
json::Object machine_object(const Board& board, const StartNews* start, const Sampler* sampler);

// Throws Failure(kExitUsage) where the --json-lines file `path` holds lines of another machine than `here`, or does not
// say of which; names all fields that differ.
void check_same_machine(const std::string& path, const json::Object& here);

}  // namespace powerccl::bench
#endif
