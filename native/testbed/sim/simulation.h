// SPDX-License-Identifier: Apache-2.0
// A scenario on a platform under a clock policy, in virtual time: all ranks, each with the policy's own code.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "abi/policy_name.h"
#include "bench/scenario.h"
#include "clock/policy_table.h"
#include "physics/platform.h"
#include "sim/run_folder.h"

namespace powerccl::sim {

// Parts of the policy that learns, which can be left out to see what each is worth.
struct Parts {
  bool slack = true;  // reclaimed
  bool marks = true;  // where computation waits
};

// A host has no lease from the one to the other, in seconds since the job began.
struct LeaseLoss {
  uint32_t host = 0;
  double from_s = 0, to_s = 0;
};

struct Asked {
  PolicyName policy = PolicyName::kObserve;
  // With kObserve: held from the beginning to the end by all ranks, or by each; empty, and 0: none is.
  std::vector<uint32_t> clocks_mhz;
  Parts parts;
  double budget_pct = 1;  // largest slowdown
  double seconds = 60;    // of virtual time that are measured
  double warm_up_s = 0;   // before it
  uint64_t seed = 1;      // of hosts' times; a scenario has its own
  double lease_interval_ms = 0;
  std::vector<LeaseLoss> lease_losses;
  std::vector<uint32_t> ranks_off;  // their policies miss the first iteration
};

struct Iteration {
  double begin_ms, ms;  // since the job began
  double joules;        // of all GPUs
};

struct Found {
  std::vector<Iteration> iterations;    // measured ones
  int first = 0;                        // the number of the first of them, from 0
  double seconds = 0, joules = 0;       // of them
  double exposed_ms = 0;                // of an iteration and GPU
  double switches_per_s = 0;            // of a GPU
  std::vector<uint32_t> clocks_mhz;     // of each rank that learns, at the end and without slack; 0: the default
  std::optional<double> first_clock_s;  // when the first clock was set, since the job began
  double real_s = 0;                    // that the simulation took
  double virtual_s = 0;
};

// `scenarios`: one for all ranks, or one for each, with the same groups. `table`: of kPerCall. `folder`: what the job
// leaves behind, if not null. Throws std::runtime_error where the ranks come to a standstill, and bench::Failure for
// what cannot be simulated.
Found simulate(const physics::Platform& platform, const std::vector<bench::Scenario>& scenarios,
               const PolicyTable* table, const Asked& asked, RunFolder* folder = nullptr);

}  // namespace powerccl::sim
