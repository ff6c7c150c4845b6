// SPDX-License-Identifier: Apache-2.0
#include "policy/holds.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace powerccl {
namespace {

TEST(Holds, TheNewestWishAppliesWhileAnybodyHolds) {
  Holds holds;
  EXPECT_EQ(holds.wanted(1).mhz, 0u);
  holds.hold(480, 7, 10);
  holds.hold(510, 8, 20);
  const ClockPolicy::Wanted wanted = holds.wanted(25);
  EXPECT_EQ(wanted.mhz, 510u);
  EXPECT_EQ(wanted.call, 8u);
  EXPECT_EQ(wanted.asked_ns, 20u);
  EXPECT_EQ(wanted.wish, 2u);
  EXPECT_GT(wanted.until_ns, 25u);
  EXPECT_FALSE(holds.release(1, 8, 30));
  EXPECT_EQ(holds.wanted(31).mhz, 510u);
  EXPECT_TRUE(holds.release(1, 7, 40));
  EXPECT_EQ(holds.wanted(41).mhz, 0u);
  EXPECT_EQ(holds.wanted(41).call, 7u) << "because it is over";
  EXPECT_EQ(holds.wanted(41).asked_ns, 40u);
}

TEST(Holds, SeveralHoldsAreReleasedAtOnce) {
  Holds holds;
  holds.hold(480, 1, 10);
  holds.hold_on();
  EXPECT_FALSE(holds.release(1, 1, 20));
  holds.hold_on();
  EXPECT_TRUE(holds.release(2, 1, 30));
  EXPECT_FALSE(holds.release(1, 1, 40)) << "nobody held";
}

TEST(Holds, WhatIsForgottenIsNotReleasedAgain) {
  Holds holds;
  holds.hold(480, 1, 10);
  holds.hold_on();
  holds.rest(20);
  EXPECT_EQ(holds.wanted(21).mhz, 0u);
  EXPECT_EQ(holds.wanted(21).call, 0u);
  EXPECT_EQ(holds.wanted(21).asked_ns, 20u);
  EXPECT_FALSE(holds.release(2, 1, 30));
  holds.hold(510, 2, 40);
  EXPECT_EQ(holds.wanted(41).mhz, 510u);
  EXPECT_TRUE(holds.release(1, 2, 50));
}

TEST(Holds, AWishIsReadAsAWhole) {
  Holds holds;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; !over; ++i) {
        const uint64_t call = 3 * i + t;
        holds.hold(static_cast<uint32_t>(call % 1000 + 1), call, call + 5);
        holds.release(1, call, call + 6);
      }
    });
  }
  uint64_t seen = 0;
  for (int i = 0; i < 200000; ++i) {
    const ClockPolicy::Wanted wanted = holds.wanted(0);
    if (wanted.mhz == 0) continue;
    ASSERT_EQ(wanted.mhz, wanted.call % 1000 + 1);
    ASSERT_EQ(wanted.asked_ns, wanted.call + 5);
    ASSERT_GE(wanted.wish, seen);
    seen = wanted.wish;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(holds.wanted(0).mhz, 0u);
}

}  // namespace
}  // namespace powerccl
