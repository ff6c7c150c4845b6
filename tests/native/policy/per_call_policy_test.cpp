// SPDX-License-Identifier: Apache-2.0
#include "policy/per_call_policy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace powerccl {
namespace {

TEST(PerCallPolicy, TheNewestWishAppliesWhileAnybodyHolds) {
  PerCallPolicy policy;
  EXPECT_EQ(policy.wanted(1).mhz, 0u);
  policy.hold(480, 7, 10);
  policy.hold(510, 8, 20);
  const ClockPolicy::Wanted wanted = policy.wanted(25);
  EXPECT_EQ(wanted.mhz, 510u);
  EXPECT_EQ(wanted.call, 8u);
  EXPECT_EQ(wanted.asked_ns, 20u);
  EXPECT_EQ(wanted.wish, 2u);
  EXPECT_GT(wanted.until_ns, 25u);
  EXPECT_FALSE(policy.release(1, 8, 30));
  EXPECT_EQ(policy.wanted(31).mhz, 510u);
  EXPECT_TRUE(policy.release(1, 7, 40));
  EXPECT_EQ(policy.wanted(41).mhz, 0u);
  EXPECT_EQ(policy.wanted(41).call, 7u) << "because it is over";
  EXPECT_EQ(policy.wanted(41).asked_ns, 40u);
}

TEST(PerCallPolicy, SeveralHoldsAreReleasedAtOnce) {
  PerCallPolicy policy;
  policy.hold(480, 1, 10);
  policy.hold_on();
  EXPECT_FALSE(policy.release(1, 1, 20));
  policy.hold_on();
  EXPECT_TRUE(policy.release(2, 1, 30));
  EXPECT_FALSE(policy.release(1, 1, 40)) << "nobody held";
}

TEST(PerCallPolicy, WhatIsForgottenIsNotReleasedAgain) {
  PerCallPolicy policy;
  policy.hold(480, 1, 10);
  policy.hold_on();
  policy.rest(20);
  EXPECT_EQ(policy.wanted(21).mhz, 0u);
  EXPECT_EQ(policy.wanted(21).call, 0u);
  EXPECT_EQ(policy.wanted(21).asked_ns, 20u);
  EXPECT_FALSE(policy.release(2, 1, 30));
  policy.hold(510, 2, 40);
  EXPECT_EQ(policy.wanted(41).mhz, 510u);
  EXPECT_TRUE(policy.release(1, 2, 50));
}

TEST(PerCallPolicy, AWishIsReadAsAWhole) {
  PerCallPolicy policy;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; !over; ++i) {
        const uint64_t call = 3 * i + t;
        policy.hold(static_cast<uint32_t>(call % 1000 + 1), call, call + 5);
        policy.release(1, call, call + 6);
      }
    });
  }
  uint64_t seen = 0;
  for (int i = 0; i < 200000; ++i) {
    const ClockPolicy::Wanted wanted = policy.wanted(0);
    if (wanted.mhz == 0) continue;
    ASSERT_EQ(wanted.mhz, wanted.call % 1000 + 1);
    ASSERT_EQ(wanted.asked_ns, wanted.call + 5);
    ASSERT_GE(wanted.wish, seen);
    seen = wanted.wish;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(policy.wanted(0).mhz, 0u);
}

}  // namespace
}  // namespace powerccl
