// SPDX-License-Identifier: Apache-2.0
// Jobs in virtual time: what takes how long, and what policies make of it.
#include "sim/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bench/values.h"
#include "platforms.h"

namespace powerccl::sim {
namespace {

using physics::platform_or_fail;

physics::Platform steady() {
  physics::Platform found = physics::steady();
  found.overlap_compute_rate = 1;
  return found;
}

PolicyTable table() {
  PolicyTable found;
  PolicyTable::Refusal refusal;
  const char text[] =
      "powerccl-policy-table 1\nplatform t4x8\ngpu Tesla T4\ngpus 8\nclock_max_mhz 1590\nclock_min_mhz 300\n"
      "switch_call_us 276\nswitch_transition_us 1000\noverhead_bytes all_reduce 4194304\n"
      "min_clock_mhz all_reduce 131072 1073741824 450\nend 9\n";
  if (!found.parse(text, &refusal)) ADD_FAILURE() << refusal.line << ": " << refusal.reason;
  return found;
}

Found run(const physics::Platform& on, const std::string& scenario, const Asked& asked) {
  const PolicyTable its = table();
  return simulate(on, {bench::parse_scenario(scenario, "test.scn")}, &its, asked);
}

Asked asked(PolicyName policy, double seconds = 2, double warm_up_s = 0) {
  Asked found;
  found.policy = policy;
  found.seconds = seconds;
  found.warm_up_s = warm_up_s;
  return found;
}

double ms_of(const Found& found) {
  return found.seconds * 1e3 / static_cast<double>(found.iterations.size());
}
double joules_of(const Found& found) {
  return found.joules / static_cast<double>(found.iterations.size());
}

// Gradients all-reduced behind computation, with nothing to hide them.
const char kExposed[] = "compute 30\nall_reduce 116M\n";

TEST(Simulation, AnIterationIsItsComputationAndItsCommunication) {
  const physics::Platform on = steady();
  const double reduce_ms = on.collective_ns(physics::Pattern::kAllReduce, 116.0 * 1024 * 1024, 1590, 8) * 1e-6;
  const Found found = run(on, kExposed, asked(PolicyName::kObserve));
  EXPECT_NEAR(ms_of(found), 30 + reduce_ms, 0.3);  // and what launches and the host take
  EXPECT_NEAR(found.exposed_ms, reduce_ms, 0.1);
  EXPECT_EQ(found.switches_per_s, 0);
  EXPECT_GE(found.seconds, 2);
}

TEST(Simulation, WhatIsHiddenTakesNoTime) {
  const std::string hidden =
      "streams comm\nwait compute on comm\nall_reduce 25M on comm\ncompute 60\nwait comm on compute\n";
  const Found found = run(steady(), hidden, asked(PolicyName::kObserve));
  EXPECT_NEAR(ms_of(found), 60, 0.3);
  EXPECT_LT(found.exposed_ms, 0.1);
}

TEST(Simulation, TheSameSeedGivesTheSame) {
  const Found first = run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kAuto, 20));
  const Found again = run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kAuto, 20));
  ASSERT_EQ(first.iterations.size(), again.iterations.size());
  for (size_t i = 0; i < first.iterations.size(); ++i) {
    ASSERT_EQ(first.iterations[i].ms, again.iterations[i].ms) << i;
    ASSERT_EQ(first.iterations[i].joules, again.iterations[i].joules) << i;
  }
  Asked other = asked(PolicyName::kObserve);
  other.seed = 2;
  EXPECT_NE(run(platform_or_fail("t4x8"), kExposed, other).iterations[0].ms,
            run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kObserve)).iterations[0].ms);
}

TEST(Simulation, AutoSavesWithinItsBudgetAndNeedsNoTable) {
  const bench::Scenario scenario = bench::parse_scenario(kExposed, "test.scn");
  const Found before = simulate(platform_or_fail("t4x8"), {scenario}, nullptr, asked(PolicyName::kObserve, 60, 30));
  const Found after = simulate(platform_or_fail("t4x8"), {scenario}, nullptr, asked(PolicyName::kAuto, 120, 60));
  EXPECT_LT(joules_of(after), 0.98 * joules_of(before));
  EXPECT_LT(ms_of(after), 1.01 * ms_of(before));
}

TEST(Simulation, StagesOfAPipelineKeepTheBudget) {
  const std::string pipeline =
      "group pipe 4\nrepeat 6\n  receive 2M from previous in pipe\n  compute 2.7\n  send 2M to next in pipe\nend\n"
      "repeat 6\n  receive 2M from next in pipe\n  compute 5.4\n  send 2M to previous in pipe\nend\ncompute 1\n";
  const Found before = run(platform_or_fail("t4x8"), pipeline, asked(PolicyName::kObserve, 30, 30));
  const Found after = run(platform_or_fail("t4x8"), pipeline, asked(PolicyName::kAuto, 120, 60));
  EXPECT_LT(joules_of(after), 0.98 * joules_of(before));
  EXPECT_LT(ms_of(after), 1.015 * ms_of(before));
  const auto longest = std::max_element(after.iterations.begin(), after.iterations.end(),
                                        [](const Iteration& a, const Iteration& b) { return a.ms < b.ms; });
  EXPECT_LT(longest->ms, 1.2 * ms_of(before));
}

TEST(Simulation, PerCallPaysForItsChangesOfClock) {
  const Found before = run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kObserve, 20, 10));
  const Found quick = run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kPerCall, 20, 10));
  const Found slow =
      run(platform_or_fail("t4x8", ":clock_transition_us=20000"), kExposed, asked(PolicyName::kPerCall, 20, 10));
  EXPECT_LT(joules_of(quick), 0.85 * joules_of(before));
  EXPECT_GT(ms_of(slow), ms_of(before) + 5);  // a low clock is left 20 ms late
  EXPECT_NEAR(quick.switches_per_s, 2e3 / ms_of(quick), 1);
}

// Twice an iteration a call stops everything. For how long a real one does was not measured.
TEST(Simulation, PerCallPaysForStalls) {
  const Found none = run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kPerCall, 20, 10));
  const Found stalled =
      run(platform_or_fail("t4x8", ":set_clock_stall_us=5000"), kExposed, asked(PolicyName::kPerCall, 20, 10));
  EXPECT_GT(ms_of(stalled), ms_of(none) + 8);
  EXPECT_LT(ms_of(stalled), ms_of(none) + 25);  // of eight GPUs, whose calls follow each other
  EXPECT_EQ(ms_of(run(platform_or_fail("t4x8", ":set_clock_stall_us=5000"), kExposed, asked(PolicyName::kObserve))),
            ms_of(run(platform_or_fail("t4x8"), kExposed, asked(PolicyName::kObserve))));
}

// On the emulator nodes run one behind the other, whatever streams they were captured in.
TEST(Simulation, AGraphIsItsNodesInTurn) {
  const std::string nodes = "compute 10\nall_reduce 16M\ncompute 5\n";
  const Found plain = run(steady(), nodes, asked(PolicyName::kObserve));
  const Found graph = run(steady(), "capture\n" + nodes + "end\n", asked(PolicyName::kObserve));
  EXPECT_NEAR(ms_of(graph), ms_of(plain), 0.1);
  EXPECT_GT(plain.exposed_ms, 5);
  EXPECT_EQ(graph.exposed_ms, 0) << "no marks are in a graph";
}

TEST(Simulation, AutoSeesWhenGraphsRun) {
  const physics::Platform on = platform_or_fail("t4x8");
  const std::string job = "capture\ncompute 30\nall_reduce 116M\nend\ncompute 3\n";
  const Found plain = run(on, job, asked(PolicyName::kObserve, 30, 30));
  const Found managed = run(on, job, asked(PolicyName::kAuto, 120, 60));
  EXPECT_LT(joules_of(managed), 0.99 * joules_of(plain));
  EXPECT_LT(ms_of(managed), 1.012 * ms_of(plain));
  EXPECT_GT(managed.switches_per_s, 0);
}

// Reading weights is nothing that a clock hastens, and draws less.
TEST(Simulation, AKernelSaysWhatOfItNoClockChanges) {
  Asked held = asked(PolicyName::kObserve);
  held.clocks_mhz = {795};  // half
  physics::Platform on = steady();
  on.memory_w = 0.2 * on.compute_w;
  const Found bound = run(on, "compute 20 memory 75%\n", held), free = run(on, "compute 20 memory 0%\n", held);
  EXPECT_NEAR(ms_of(bound), 20 * (0.75 + 0.25 * 2), 0.5);
  EXPECT_NEAR(ms_of(free), 20 * 2, 0.5);
  EXPECT_LT(joules_of(bound) / ms_of(bound), 0.9 * joules_of(free) / ms_of(free));
}

TEST(Simulation, AClockIsHeldFromBeginningToEnd) {
  Asked held = asked(PolicyName::kObserve);
  held.clocks_mhz = {795};  // half
  const Found slow = run(steady(), "compute 30\n", held);
  const Found quick = run(steady(), "compute 30\n", asked(PolicyName::kObserve));
  EXPECT_GT(ms_of(slow), 1.5 * ms_of(quick));
  EXPECT_LT(joules_of(slow), joules_of(quick));
}

TEST(Simulation, EachRankHoldsItsOwnClock) {
  const physics::Platform on = steady();
  Asked held = asked(PolicyName::kObserve);
  held.clocks_mhz.assign(on.gpus, 1590);
  const Found quick = run(on, "compute 30\nall_reduce 1M\n", held);
  held.clocks_mhz.back() = 795;
  const Found one_slow = run(on, "compute 30\nall_reduce 1M\n", held);
  EXPECT_NEAR(ms_of(one_slow), ms_of(quick) + 30, 3) << "all wait for it";
}

// One rank computes longer than the others, which wait for it.
TEST(Simulation, WithoutSlackWhoWaitsSavesLess) {
  physics::Platform on = platform_or_fail("a100x4");
  on.gpus = 2;
  const auto parsed = [](const char* text) { return bench::parse_scenario(text, "test.scn"); };
  const std::vector<bench::Scenario> each{parsed("compute 60\nall_reduce 64M\n"),
                                          parsed("compute 40\nall_reduce 64M\n")};
  Asked its = asked(PolicyName::kAuto, 60, 60);
  const Found with = simulate(on, each, nullptr, its);
  its.parts.slack = false;
  const Found without = simulate(on, each, nullptr, its);
  EXPECT_LT(joules_of(with), 0.98 * joules_of(without));
  EXPECT_LT(ms_of(with), 1.01 * ms_of(without));
}

TEST(Simulation, RanksMayHaveAScenarioEach) {
  physics::Platform on = steady();
  on.gpus = 2;
  const auto parsed = [](const char* text) { return bench::parse_scenario(text, "test.scn"); };
  const std::vector<bench::Scenario> each{parsed("compute 10\nsend 1M to +1\n"), parsed("receive 1M from -1\n")};
  const Found found = simulate(on, each, nullptr, asked(PolicyName::kObserve));
  const Found alone = simulate(on, {parsed("compute 10\n")}, nullptr, asked(PolicyName::kObserve));
  EXPECT_GT(ms_of(found), ms_of(alone) + 0.1) << "the message follows the computation";
  EXPECT_LT(joules_of(found), 0.8 * joules_of(alone)) << "one of both computes";
}

// Two hosts of eight GPUs, each GPU with an adapter of 0.25 GB/s.
physics::Platform two_hosts() {
  physics::Platform on = steady();
  on.gpus = 16;
  on.hosts = 2;
  on.network_gbs = 0.25;
  on.network_latency_us = 100;
  return on;
}

TEST(Simulation, TheNetworkBoundsWhatGoesBetweenHosts) {
  constexpr double kBytes = 64.0 * 1024 * 1024, kLatencyMs = 0.1;
  const auto ms = [](const char* job) { return ms_of(run(two_hosts(), job, asked(PolicyName::kObserve))) - 10; };
  // Each host sends its sum once, over eight adapters: that takes less time than the eight GPUs' own links.
  physics::Platform one = two_hosts();
  one.hosts = 1;
  EXPECT_NEAR(ms("compute 10\nall_reduce 64M\n"),
              ms_of(run(one, "compute 10\nall_reduce 64M\n", asked(PolicyName::kObserve))) - 10 + 2 * kLatencyMs, 0.3);
  physics::Platform slow = two_hosts();
  slow.network_gbs = 0.1;
  EXPECT_NEAR(ms_of(run(slow, "compute 10\nall_reduce 64M\n", asked(PolicyName::kObserve))) - 10,
              kBytes / (8 * 0.1) * 1e-6 + 2 * kLatencyMs, 0.3);
  // Pairs of one GPU of each host.
  EXPECT_NEAR(ms("group pair 2 stride 8\ncompute 10\nall_reduce 64M in pair\n"), kBytes / 0.25 * 1e-6 + 2 * kLatencyMs,
              0.3);
  EXPECT_NEAR(ms("compute 10\nsend 64M to +8\nreceive 64M from -8\n"), kBytes / 0.25 * 1e-6 + kLatencyMs, 0.4);
}

TEST(Simulation, WhatStaysOnAHostNeedsNoNetwork) {
  physics::Platform one = two_hosts();
  one.hosts = 1;
  const std::string job = "group host 8\ncompute 10\nall_reduce 64M in host\n";
  EXPECT_NEAR(ms_of(run(two_hosts(), job, asked(PolicyName::kObserve))),
              ms_of(run(one, job, asked(PolicyName::kObserve))), 0.01);
}

TEST(Simulation, MessagesOfOneGpuShareItsAdapter) {
  const auto ms = [](const char* job) { return ms_of(run(two_hosts(), job, asked(PolicyName::kObserve))) - 10; };
  const double even = ms("compute 10\nall_to_all 16M\n");
  EXPECT_NEAR(even, 16.0 * 1024 * 1024 * 8 / 16 / 0.25 * 1e-6 + 0.1, 0.5) << "half of it goes to the other host";
}

TEST(Simulation, SixtyFourGpusOnEightHosts) {
  physics::Platform on = platform_or_fail("h100x8", ":gpus=64,hosts=8");
  const Found found = run(on, "compute 30\nall_reduce 512M\n", asked(PolicyName::kAuto, 1));
  const double bytes = 512.0 * 1024 * 1024;
  EXPECT_NEAR(ms_of(found), 30 + on.network_ns(physics::Pattern::kAllReduce, bytes, 64, 8, 8) * 1e-6, 4);
}

// Ranks of two hosts, of which one has no lease for half of the time: its clock is the default meanwhile, and learnt
// slowdowns stay true enough to keep the budget.
TEST(Simulation, AHostMayLoseItsLease) {
  const physics::Platform on = platform_or_fail("t4x8", ":hosts=2,network_gbs=25");
  const Found plain = run(on, kExposed, asked(PolicyName::kObserve, 60, 60));
  Asked its = asked(PolicyName::kAuto, 60, 60);
  const Found kept = run(on, kExposed, its);
  its.lease_losses = {{1, 70, 110}};
  const Found lost = run(on, kExposed, its);
  EXPECT_LT(joules_of(kept), 0.98 * joules_of(plain));
  EXPECT_GT(joules_of(lost), joules_of(kept) + 0.2 * (joules_of(plain) - joules_of(kept)));
  EXPECT_LT(joules_of(lost), joules_of(plain));
  EXPECT_LT(ms_of(lost), 1.01 * ms_of(plain));
}

TEST(Simulation, ADaemonGrantsLowerClocksOneByOne) {
  const physics::Platform on = platform_or_fail("t4x8");
  Asked its = asked(PolicyName::kPerCall, 20, 5);
  const double quick = run(on, kExposed, its).switches_per_s;
  its.lease_interval_ms = 1000;
  EXPECT_GT(quick, 10);
  EXPECT_LT(run(on, kExposed, its).switches_per_s, 2.1) << "one down a second, and one up";
}

TEST(Simulation, ARankMayCountOneIterationOff) {
  const physics::Platform on = platform_or_fail("t4x8");
  const Found plain = run(on, kExposed, asked(PolicyName::kObserve, 60, 60));
  Asked its = asked(PolicyName::kAuto, 60, 60);
  const Found together = run(on, kExposed, its);
  its.ranks_off = {2};
  const Found off = run(on, kExposed, its);
  EXPECT_NE(joules_of(off), joules_of(together));
  EXPECT_LT(joules_of(off), 0.98 * joules_of(plain));
  EXPECT_LT(ms_of(off), 1.01 * ms_of(plain));
}

TEST(Simulation, ScenariosThatDoNotBelongTogetherAreRefused) {
  physics::Platform on = steady();
  on.gpus = 2;
  const auto parsed = [](const char* text) { return bench::parse_scenario(text, "test.scn"); };
  const Asked its = asked(PolicyName::kObserve);
  EXPECT_THROW(simulate(on, {parsed("compute 1\n"), parsed("group two 2\ncompute 1\n")}, nullptr, its), bench::Failure);
  const bench::Scenario one = parsed("compute 1\n");
  EXPECT_THROW(simulate(on, {one, one, one}, nullptr, its), bench::Failure);
}

TEST(Simulation, WhatIsNotSimulatedIsRefused) {
  for (const char* scenario : {"scatter 1M\n", "all_reduce 1M by symmetric\n"}) {
    EXPECT_THROW(run(steady(), scenario, asked(PolicyName::kObserve)), bench::Failure) << scenario;
  }
}

TEST(Simulation, RanksThatDoNotDivideAreRefused) {
  EXPECT_THROW(run(steady(), "group three 3\nall_reduce 1M in three\n", asked(PolicyName::kObserve)), bench::Failure);
}

}  // namespace
}  // namespace powerccl::sim
