// SPDX-License-Identifier: Apache-2.0
#include "policy/windows.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace powerccl {
namespace {

constexpr double kMs = 1e6;

struct Kernel {
  double at_ms, lasts_ms;
  uint32_t mhz;
};

class WindowsTest : public testing::Test {
 protected:
  WindowsTest() {
    times.call.add(0.3 * kMs);
    times.transition.add(kMs);
    times.measured = true;
  }
  // After enough iterations of 100 ms, in which computation waits for each kernel from its start.
  void build(const std::vector<Kernel>& kernels) {
    uint64_t call = 0;
    for (int i = 0; i < 40; ++i) {
      uint32_t kind = 0;
      for (const Kernel& kernel : kernels) {
        const uint64_t start_ns = static_cast<uint64_t>((1000 + 100 * i + kernel.at_ms) * kMs);
        timetable->called(++call, ++kind, kernel.mhz);
        timetable->started(call, start_ns);
        timetable->waited(call, start_ns);
        timetable->stopped(call, start_ns + static_cast<uint64_t>(kernel.lasts_ms * kMs));
        timetable->settle();
      }
    }
    ASSERT_TRUE(timetable->settled());
    for (uint64_t i = 0; timetable->complete(i); ++i) timetable->learn(i, true);
    windows->build(*timetable, *margins, times, true);
  }
  SwitchTimes times;
  std::unique_ptr<Timetable> timetable = std::make_unique<Timetable>();
  std::unique_ptr<Margins> margins = std::make_unique<Margins>();
  std::unique_ptr<Windows> windows = std::make_unique<Windows>();
};

TEST_F(WindowsTest, TheClockIsAskedForAhead) {
  build({{0, 30, 450}});
  ASSERT_EQ(windows->count(), 1u);
  const Window& window = (*windows)[0];
  EXPECT_NEAR(window.ask_low / kMs, -1.3, 0.01);
  EXPECT_NEAR(window.ask_high / kMs, 30 - 1.3, 0.01);
  EXPECT_NEAR(windows->covered_ns() / kMs, 30, 0.01);
}

TEST_F(WindowsTest, NeighboursOfLikeClocksBecomeOneAtTheHigher) {
  build({{0, 7.5, 450}, {7.5, 70, 390}, {77.5, 7.5, 450}});
  ASSERT_EQ(windows->count(), 1u);
  EXPECT_EQ((*windows)[0].mhz, 450u);
  EXPECT_NEAR(windows->covered_ns() / kMs, 85, 0.01);
}

TEST_F(WindowsTest, AShortNeighbourDoesNotRaiseALongOne) {
  build({{0, 2, 900}, {2, 30, 450}, {32, 2, 900}});
  ASSERT_EQ(windows->count(), 1u);
  EXPECT_EQ((*windows)[0].mhz, 450u);
  EXPECT_NEAR((*windows)[0].low / kMs, 2, 0.01);
  EXPECT_NEAR((*windows)[0].high / kMs, 32, 0.01);
  EXPECT_NEAR(windows->too_short_ns() / kMs, 4, 0.01);
}

TEST_F(WindowsTest, WhatIsShorterThanAChangeIsLeftAlone) {
  build({{0, 30, 450}, {60, 1.2, 450}});
  EXPECT_EQ(windows->count(), 1u);
  EXPECT_NEAR(windows->too_short_ns() / kMs, 1.2, 0.01);
}

// A stage of a pipeline in its bubble: waiting takes no clock, the activations that come in the end do.
TEST_F(WindowsTest, WhoWaitsForAPeerDoesSoAtTheLowestClock) {
  build({{0, 30, 900}, {60, 2, 900}});
  EXPECT_EQ((*windows)[0].mhz, 900u);  // how long it takes without waiting is not known
  margins->transfer[(*windows)[0].first] = 1.5 * kMs;
  margins->transfer[(*windows)[1].first] = 1.5 * kMs;
  windows->build(*timetable, *margins, times, true, 450);
  ASSERT_EQ(windows->count(), 2u);
  EXPECT_EQ((*windows)[0].mhz, 450u);
  EXPECT_NEAR((*windows)[0].high / kMs, 28.5, 0.01);
  EXPECT_NEAR((*windows)[0].transfer / kMs, 1.5, 0.01);
  EXPECT_EQ((*windows)[1].mhz, 900u);  // mostly the transfer itself
  EXPECT_EQ((*windows)[1].transfer, 0);
}

TEST_F(WindowsTest, ThereAreNoMoreChangesThanAreWorthTheirTime) {
  times = {};
  times.call.add(0.02 * kMs);
  times.transition.add(0.03 * kMs);
  times.measured = true;
  std::vector<Kernel> kernels;
  for (int i = 0; i < 24; ++i) kernels.push_back({4.0 * i, 1 + 0.01 * i, 450});
  times.processor_ns = 45000;  // so 100 changes a second
  build(kernels);
  EXPECT_EQ(windows->count(), 5u);
  EXPECT_GT((*windows)[0].high - (*windows)[0].low, 1.18 * kMs);  // the longest
  windows->build(*timetable, *margins, times, true, 0, 6);
  EXPECT_EQ(windows->count(), 2u);
  times.processor_ns = 450000;  // not even one
  windows->build(*timetable, *margins, times, true);
  EXPECT_EQ(windows->count(), 0u);
  times.processor_ns = 1000;  // where they cost next to nothing it is what powerccld grants
  windows->build(*timetable, *margins, times, true);
  EXPECT_EQ(windows->count(), 8u);
}

TEST(ChangeCost, IsThatOfChangesThatComeOften) {
  ChangeCost cost;
  EXPECT_EQ(cost.ns(), ChangeCost::kAssumedNs);
  cost.looked(50'000'000, 20);  // learning what the job is like
  EXPECT_EQ(cost.ns(), ChangeCost::kAssumedNs);
  cost.looked(50'000'000 + 1000 * 40'000, 1020);
  EXPECT_NEAR(cost.ns(), 40'000, 1);
  cost.looked(50'000'000 + 1000 * 40'000 + 1000 * 20'000, 2020);
  EXPECT_NEAR(cost.ns(), 30'000, 1);
  cost.looked(200'000'000, 2021);  // left alone
  EXPECT_NEAR(cost.ns(), 30'000, 1);
}

// As measured with quick switching on a busy host: one of six looked as if it had taken 15 ms, and what is not much
// longer than two changes was left alone by all ranks.
TEST(SwitchTimes, OneLateArrivalDoesNotCountForAll) {
  for (const int late : {0, 1, 3, 5}) {
    SwitchTimes times;
    for (int i = 0; i < 6; ++i) {
      times.arrived(i == late ? 15 * kMs : (0.03 + 0.004 * i) * kMs);
      if (i > late) {
        EXPECT_LT(times.transition_ns(), 0.06 * kMs) << i;
      }
    }
    EXPECT_LT(times.transition_ns(), 0.06 * kMs) << late;
    EXPECT_GT(times.transition_ns(), 0.03 * kMs) << late;
  }
}

TEST(SwitchTimes, ArrivalsThatDifferCountTogether) {
  SwitchTimes times;
  for (const double ms : {12.0, 20.0, 16.0, 14.0}) times.arrived(ms * kMs);
  EXPECT_NEAR(times.transition_ns(), 15.5 * kMs, kMs);
  EXPECT_GT(times.slow_change_ns(), times.change_ns() - 1);
}

TEST_F(WindowsTest, InTurnsTheClockFallsLaterAndRisesSooner) {
  times.later_ns = 3 * 0.3 * kMs;
  times.sooner_ns = 4 * 0.3 * kMs;
  build({{0, 30, 450}});
  ASSERT_EQ(windows->count(), 1u);
  EXPECT_NEAR((*windows)[0].ask_low / kMs, -1.3 + 0.9, 0.01);
  EXPECT_NEAR((*windows)[0].ask_high / kMs, 30 - 1.3 - 1.2, 0.01);
}

}  // namespace
}  // namespace powerccl
