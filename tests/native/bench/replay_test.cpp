// SPDX-License-Identifier: Apache-2.0
#include "bench/replay.h"

#include <gtest/gtest.h>

#include "bench/computation.h"

namespace powerccl::bench {
namespace {

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

TEST(Iterations, TheFilesUnlessGiven) {
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

}  // namespace
}  // namespace powerccl::bench
