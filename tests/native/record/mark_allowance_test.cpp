// SPDX-License-Identifier: Apache-2.0
#include "record/mark_allowance.h"

#include <gtest/gtest.h>

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
