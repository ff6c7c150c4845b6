// SPDX-License-Identifier: Apache-2.0
#include "policy/per_call_policy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "policy/slack_reclaimer.h"

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

// A rank that computes for 30 ms or so at the default clock and waits for the others in a collective, which then takes
// 10 ms: an iteration of 100 ms.
class Rank {
 public:
  explicit Rank(double computes_ms = 30) : computes_ms_(computes_ms) {}
  // Iterations at the present stretch, which is adjusted then.
  void run(int iterations) {
    for (int i = 0; i < iterations; ++i, begin_ms_ += 100) {
      const uint64_t call = ++calls_;
      profile_->called(call, 1);
      const double computed_ms = begin_ms_ + computes_ms_ * (1 + slack_->stretch());
      profile_->started(call, static_cast<uint64_t>(computed_ms * 1e6));
      profile_->stopped(call, static_cast<uint64_t>((begin_ms_ + 100) * 1e6));
      node_->least_us(1, 10000);
      profile_->settle();
    }
    if (!profile_->settled()) return;
    for (; profile_->complete(learnt_); ++learnt_) {
      profile_->learn(learnt_);
      slack_->iteration(*profile_, learnt_, node_.get());
    }
    slack_->adjust(*profile_);
    slack_->restart();
  }
  SlackReclaimer& slack() { return *slack_; }

 private:
  std::unique_ptr<IterationProfile> profile_ = std::make_unique<IterationProfile>();
  std::unique_ptr<SlackReclaimer> slack_ = std::make_unique<SlackReclaimer>();
  std::unique_ptr<NodeState> node_ = std::make_unique<NodeState>();
  double computes_ms_, begin_ms_ = 1000;
  uint64_t calls_ = 0, learnt_ = 0;
};

TEST(SlackReclaimer, IsReclaimedUntilItIsSaidToCostTime) {
  Rank rank;
  for (int i = 0; i < 20; ++i) rank.run(30);
  const double all = rank.slack().stretch();
  EXPECT_NEAR(all, 2, 0.01) << "it can compute for 90 ms";
  rank.slack().halve();
  for (int i = 0; i < 20; ++i) rank.run(30);
  EXPECT_EQ(rank.slack().stretch(), all / 2) << "whatever its waits say";
  rank.slack().restore();
  EXPECT_EQ(rank.slack().stretch(), all / 2) << "until its waits say so";
  for (int i = 0; i < 20; ++i) rank.run(30);
  EXPECT_NEAR(rank.slack().stretch(), all, 0.01);
  Rank quick(10);
  for (int i = 0; i < 20; ++i) quick.run(30);
  EXPECT_EQ(quick.slack().stretch(), 3) << "four times as long is the most";
}

}  // namespace

}  // namespace powerccl
