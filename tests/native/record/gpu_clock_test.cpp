// SPDX-License-Identifier: Apache-2.0
#include "record/gpu_clock.h"

#include <gtest/gtest.h>

namespace powerccl::test {
namespace {

constexpr uint64_t kHost = 500000000000u;  // CLOCK_MONOTONIC at the test's beginning

TEST(GpuClock, TakesTheLeastDifference) {
  GpuClock clock;
  EXPECT_FALSE(clock.known());
  EXPECT_EQ(clock.offset_ns(kHost), 0);
  // The GPU's clock is 10^12 ns ahead; the host sees events 40, 5 and 90 us late.
  clock.observe(kHost + 1000000000000u, kHost + 40000);
  clock.observe(kHost + 1000000000000u + 1000, kHost + 1000 + 5000);
  clock.observe(kHost + 1000000000000u + 2000, kHost + 2000 + 90000);
  EXPECT_TRUE(clock.known());
  EXPECT_NEAR(static_cast<double>(clock.offset_ns(kHost + 3000)), -1e12 + 5000, 10);
}

TEST(GpuClock, FollowsDriftBothWays) {
  for (const double drift : {-10e-6, 10e-6}) {
    GpuClock clock;
    double worst = 0;
    for (uint64_t second = 0; second < 600; ++second) {
      const uint64_t host = kHost + second * 1000000000u;
      const double truth = -1e12 - drift * static_cast<double>(second) * 1e9;
      const uint64_t gpu = static_cast<uint64_t>(static_cast<double>(host) - truth);
      for (uint64_t late : {9000u, 3000u, 50000u}) clock.observe(gpu, host + late);
      worst = std::max(worst, std::abs(static_cast<double>(clock.offset_ns(host)) - truth));
    }
    EXPECT_LT(worst, 40000) << drift;
  }
}

}  // namespace
}  // namespace powerccl::test
