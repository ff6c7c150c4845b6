// SPDX-License-Identifier: Apache-2.0
// The replay of a scenario's iterations as each rank runs it.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/rank.h"
#include "bench/scenario.h"

namespace powerccl::bench {

void run_scenario(const Options& options, const Scenario& scenario, Rank& rank);

// From the scenario's own number of iterations, unless --iterations says another.
int iterations_of(const Options& options, const Scenario& scenario);
// --seconds: as many as take about so long, and at least one.
int iterations_in(double seconds, double iteration_s);

// Total length of the union of stretches, which may overlap.
uint64_t union_ns(std::vector<std::pair<uint64_t, uint64_t>> stretches);

// A stretch of one stream's time, in ns since the iteration's start.
struct Stretch {
  uint64_t begin, end;
  bool computes;  // else it communicates, waiting for other ranks included
};
// What an iteration consisted of; exposed is where something communicates and nothing computes.
IterationTimes times_of(const std::vector<Stretch>& stretches);

}  // namespace powerccl::bench
