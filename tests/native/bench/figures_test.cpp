// SPDX-License-Identifier: Apache-2.0
// What becomes of times and counters: iterations, medians, energies, and JSON.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "bench/computation.h"
#include "bench/json.h"
#include "bench/measurement.h"
#include "bench/replay.h"
#include "bench/sampler.h"

namespace powerccl::bench {
namespace {

TEST(Iterations, FillTheTimeWithinBounds) {
  EXPECT_EQ(iterations_for(0.01, 0.25, 20), 25U);
  EXPECT_EQ(iterations_for(0.1, 0.25, 20), 20U);
  EXPECT_EQ(iterations_for(1e-9, 1, 1), 1'000'000U);
  EXPECT_EQ(iterations_for(1, 0, 1), 1U);
}

TEST(Median, OfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Nccl, CandidatesInOrder) {
  unsetenv("NCCL_LIBRARY");
  setenv("POWERCCL_NCCL_LIBRARY", "/wheel/libnccl.so.2", 1);
  EXPECT_EQ(nccl_candidates("/a.so"), (std::vector<std::string>{"/a.so"}));
  EXPECT_EQ(nccl_candidates(""), (std::vector<std::string>{"libnccl.so.2", "/wheel/libnccl.so.2"}));
  setenv("NCCL_LIBRARY", "/b.so", 1);
  EXPECT_EQ(nccl_candidates(""), (std::vector<std::string>{"/b.so"}));
  unsetenv("NCCL_LIBRARY");
  unsetenv("POWERCCL_NCCL_LIBRARY");
}

TEST(Nccl, VersionText) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

constexpr uint64_t kMs = 1'000'000;

TEST(Times, ExposedIsCommunicationWithoutComputation) {
  const IterationTimes times = times_of({{0, 10 * kMs, true}, {8 * kMs, 15 * kMs, false}, {20 * kMs, 22 * kMs, true}});
  EXPECT_DOUBLE_EQ(times.step_ms, 22);
  EXPECT_DOUBLE_EQ(times.compute_ms, 12);
  EXPECT_DOUBLE_EQ(times.communication_ms, 7);
  EXPECT_DOUBLE_EQ(times.exposed_ms, 5);
}

TEST(Times, StreamsThatDoTheSameCountOnce) {
  const IterationTimes times = times_of({{0, 4 * kMs, true}, {2 * kMs, 6 * kMs, true}, {0, 9 * kMs, false}});
  EXPECT_DOUBLE_EQ(times.compute_ms, 6);
  EXPECT_DOUBLE_EQ(times.exposed_ms, 3);
  EXPECT_DOUBLE_EQ(times_of({}).step_ms, 0);
}

TEST(Union, OfOverlappingStretches) {
  EXPECT_EQ(union_ns({}), 0U);
  EXPECT_EQ(union_ns({{10, 20}, {30, 35}}), 15U);
  EXPECT_EQ(union_ns({{30, 35}, {10, 32}, {12, 14}}), 25U);
}

TEST(Iterations, AreTheFilesUnlessGiven) {
  Options options;
  Scenario scenario;
  scenario.iterations = 30;
  EXPECT_EQ(iterations_of(options, scenario), 30);
  options.scenario_iterations = 5;
  EXPECT_EQ(iterations_of(options, scenario), 5);
}

TEST(Iterations, AsManyAsFillTheSeconds) {
  EXPECT_EQ(iterations_in(2, 0.1), 20);
  EXPECT_EQ(iterations_in(2, 0.3), 7);
  EXPECT_EQ(iterations_in(1, 60), 1);
  EXPECT_EQ(iterations_in(86400, 0), 1'000'000);
}

TEST(WholeUnits, LoseNoTimeInTotal) {
  WholeUnits units(0.2);
  int total = 0;
  for (int i = 0; i < 1000; ++i) {
    const int taken = units.take(0.33);
    EXPECT_GE(taken, 1);
    EXPECT_LE(taken, 2);
    total += taken;
  }
  EXPECT_EQ(total, 1650);
}

TEST(WholeUnits, WhatIsTooShortForOneWaitsUntilItIsNot) {
  WholeUnits units(0.2);
  EXPECT_EQ(units.take(0.06), 0);
  EXPECT_EQ(units.take(0.06), 1);  // 0.12 is nearer to a unit than to none
  EXPECT_EQ(units.take(0.06), 0);
  EXPECT_EQ(units.take(0), 0);
}

// A counter that moves every 20 ms at 50 W, each update known to +-2 ms.
std::vector<EnergyUpdate> steady(int updates) {
  std::vector<EnergyUpdate> all;
  for (int i = 0; i < updates; ++i) all.push_back({static_cast<uint64_t>(i) * 20 * kMs, i == 0 ? 0 : 2 * kMs, i * 1.0});
  return all;
}

TEST(SteadyPower, UsesUpdatesInsideTheWindowAlone) {
  const auto power = steady_power(steady(20), 50 * kMs, 210 * kMs);
  ASSERT_TRUE(power);
  EXPECT_NEAR(power->watts, 50, 1e-9);
  EXPECT_EQ(power->updates, 7);  // 60 to 200 ms
  EXPECT_NEAR(power->window_s, 0.140, 1e-9);
  EXPECT_GT(power->uncertainty, 0.01);
  EXPECT_LT(power->uncertainty, 0.02);
}

TEST(SteadyPower, AnUpdateThatMayLieOutsideDoesNotCount) {
  const auto power = steady_power(steady(20), 59 * kMs, 201 * kMs);
  ASSERT_TRUE(power);
  EXPECT_EQ(power->updates, 5);  // 80 to 180 ms: those at 60 and 200 may have been earlier or later
}

TEST(SteadyPower, ALateReadingCountsLittle) {
  auto updates = steady(10);
  updates[8].time_ns += 9 * kMs;  // seen 18 ms late: somewhere in between
  updates[8].slack_ns += 9 * kMs;
  const auto power = steady_power(updates, 10 * kMs, 175 * kMs);
  ASSERT_TRUE(power);
  EXPECT_EQ(power->updates, 6);  // that one may lie outside
  const auto longer = steady_power(updates, 10 * kMs, 195 * kMs);
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->updates, 8);
  EXPECT_NEAR(longer->watts, 50, 0.5);
}

TEST(SteadyPower, NothingFromOneUpdate) {
  EXPECT_FALSE(steady_power(steady(20), 50 * kMs, 70 * kMs));
  EXPECT_FALSE(steady_power({}, 0, 1000 * kMs));
}

TEST(JoulesBetween, StraightLines) {
  const auto updates = steady(10);
  EXPECT_NEAR(*joules_between(updates, 30 * kMs, 110 * kMs), 4.0, 1e-9);
  EXPECT_NEAR(*joules_between(updates, 40 * kMs, 80 * kMs), 2.0, 1e-9);
}

TEST(JoulesBetween, NothingFromLessThanTwoPeriods) {
  EXPECT_FALSE(joules_between(steady(10), 40 * kMs, 79 * kMs));
}

TEST(JoulesBetween, NothingBeyondWhatWasSeen) {
  EXPECT_FALSE(joules_between(steady(10), 30 * kMs, 181 * kMs));
  EXPECT_FALSE(joules_between({{100 * kMs, 0, 1}, {200 * kMs, 0, 2}}, 50 * kMs, 150 * kMs));
  EXPECT_FALSE(joules_between({}, 0, 1));
}

TEST(Json, ValuesOfEachKind) {
  const std::string text = json::Object()
                               .add("a", 1)
                               .add("b", 2.5)
                               .add("c", "x")
                               .add("d", true)
                               .add("e", std::nullopt)
                               .add("f", std::optional<int>(3))
                               .add("g", std::vector<int>{1, 2})
                               .add("h", std::vector<std::string>{})
                               .add("i", json::Object().add("j", uint64_t{18446744073709551615U}).raw())
                               .text();
  EXPECT_EQ(text, R"({"a": 1, "b": 2.5, "c": "x", "d": true, "e": null, "f": 3, "g": [1, 2], "h": [], )"
                  R"("i": {"j": 18446744073709551615}})");
}

TEST(Json, WhatIsNoNumberIsNull) {
  EXPECT_EQ(json::value(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(json::value(std::numeric_limits<double>::infinity()), "null");
}

TEST(Json, TextIsEscaped) {
  EXPECT_EQ(json::quote("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\u000ad\\u0001\"");
}

TEST(Json, MergeKeepsOrder) {
  EXPECT_EQ(json::Object().add("a", 1).merge(json::Object().add("b", 2)).text(), R"({"a": 1, "b": 2})");
  EXPECT_EQ(json::Object().merge(json::Object()).text(), "{}");
}

}  // namespace
}  // namespace powerccl::bench
