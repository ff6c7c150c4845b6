// SPDX-License-Identifier: Apache-2.0
#include "record/patterns.h"

#include <gtest/gtest.h>

#include "record/gpu_clock.h"
#include "record/mark_allowance.h"

namespace powerccl::test {
namespace {

Classified of(uint32_t nranks, uint32_t sends, uint32_t receives, uint64_t each = 100) {
  return classify({sends, receives, sends * each, receives * each}, nranks);
}

#define EXPECT_IS(classified, expected_pattern, expected_bytes)  \
  do {                                                           \
    const Classified its = (classified);                         \
    EXPECT_EQ(its.pattern, expected_pattern);                    \
    EXPECT_EQ(its.bytes, static_cast<uint64_t>(expected_bytes)); \
  } while (false)

TEST(Patterns, NamesGoBothWays) {
  for (uint8_t pattern = 0; pattern < POWERCCL_PATTERNS; ++pattern) {
    ASSERT_NE(pattern_name(pattern), nullptr);
    EXPECT_EQ(pattern_by_name(pattern_name(pattern)), pattern);
  }
  EXPECT_EQ(pattern_name(POWERCCL_PATTERN_UNKNOWN), nullptr);
  EXPECT_EQ(pattern_by_name("allreduce"), POWERCCL_PATTERN_UNKNOWN);
}

TEST(Patterns, GroupsAreToldApartByTheirCounts) {
  EXPECT_IS(of(8, 8, 8), POWERCCL_ALL_TO_ALL, 800);
  EXPECT_IS(of(2, 2, 2), POWERCCL_ALL_TO_ALL, 200);
  EXPECT_IS(of(8, 8, 1), POWERCCL_SCATTER, 800);  // NCCL's own root
  EXPECT_IS(of(8, 8, 0), POWERCCL_SCATTER, 800);
  EXPECT_IS(of(8, 1, 8), POWERCCL_GATHER, 800);
  EXPECT_IS(of(8, 0, 8), POWERCCL_GATHER, 800);
  EXPECT_IS(of(2, 2, 1), POWERCCL_SCATTER, 200);
  EXPECT_IS(of(2, 1, 2), POWERCCL_GATHER, 200);
}

TEST(Patterns, OwnPartMayBeLeftOut) {
  EXPECT_IS(of(8, 7, 7), POWERCCL_ALL_TO_ALL, 800);
  EXPECT_IS(of(8, 7, 0), POWERCCL_SCATTER, 800);
  EXPECT_IS(of(8, 0, 7), POWERCCL_GATHER, 800);
}

TEST(Patterns, TheRestIsSendReceive) {
  EXPECT_IS(of(2, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 0, 1), POWERCCL_SEND_RECEIVE, 100);  // a scatter's leaf, or a pipeline's stage
  EXPECT_IS(of(8, 1, 0), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 2, 2), POWERCCL_SEND_RECEIVE, 200);
  EXPECT_IS(of(8, 3, 7), POWERCCL_SEND_RECEIVE, 700);
  EXPECT_IS(of(1, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 0, 0), POWERCCL_SEND_RECEIVE, 0);
}

TEST(Patterns, SizeClassesSpanAllSizes) {
  EXPECT_EQ(size_class(0), 0u);
  EXPECT_EQ(size_class(1), 1u);
  EXPECT_EQ(size_class(1023), size_class(512));
  EXPECT_NE(size_class(1024), size_class(1023));
  EXPECT_LT(size_class(UINT64_MAX), kSizeClasses);
}

}  // namespace

}  // namespace powerccl::test

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

namespace powerccl {
namespace {

constexpr int64_t kMs = 1000000;

// Marks that are granted of waits at this distance, in so long; each takes `host_ns` of its thread.
uint64_t granted(MarkAllowance* allowance, int64_t* now_ns, int64_t apart_ns, int64_t length_ns, int64_t host_ns) {
  uint64_t count = 0;
  for (const int64_t end = *now_ns + length_ns; *now_ns < end; *now_ns += apart_ns) {
    const MarkAllowance::Answer answer = allowance->ask(*now_ns);
    count += answer.granted ? 1 : 0;
    if (answer.wants_cost) allowance->costs(host_ns);
  }
  return count;
}

TEST(MarkAllowance, FewWaitsAreAllMarked) {
  MarkAllowance allowance;
  int64_t now = 0;
  EXPECT_EQ(granted(&allowance, &now, 5 * kMs, 20000 * kMs, 1000), 4000u);
}

TEST(MarkAllowance, ManyWaitsAreMarkedInBurstsAsTheGpuCanBear) {
  MarkAllowance allowance;
  int64_t now = 0;
  EXPECT_NEAR(static_cast<double>(granted(&allowance, &now, kMs, 40000 * kMs, 1000)), 1024 + 10000, 520);
}

TEST(MarkAllowance, BehindTheFirstBurstTheyTakeAThousandthOfTheHost) {
  MarkAllowance allowance;
  int64_t now = 0;
  EXPECT_NEAR(static_cast<double>(granted(&allowance, &now, kMs, 100000 * kMs, 20000)), 1024 + 5000, 520);
}

TEST(MarkAllowance, APauseIsToldOnce) {
  MarkAllowance allowance;
  uint64_t pauses = 0, marked = 0;
  for (int64_t now = 0; now < 1500 * kMs; now += kMs) {
    const MarkAllowance::Answer answer = allowance.ask(now);
    pauses += answer.pauses ? 1 : 0;
    if (answer.pauses) marked = answer.marked;
    EXPECT_EQ(answer.burst, 1u);
  }
  EXPECT_EQ(pauses, 1u);
  EXPECT_NEAR(static_cast<double>(marked), 1024 * 4 / 3.0, 5);  // what it earns meanwhile is spent too
  EXPECT_EQ(allowance.ask(20000 * kMs).burst, 2u);
}

}  // namespace

}  // namespace powerccl
