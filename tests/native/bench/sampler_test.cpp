// SPDX-License-Identifier: Apache-2.0
#include "bench/sampler.h"

#include <gtest/gtest.h>

namespace powerccl::bench {
namespace {

constexpr uint64_t kMs = 1'000'000;

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

}  // namespace
}  // namespace powerccl::bench
