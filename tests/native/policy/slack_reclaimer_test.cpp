// SPDX-License-Identifier: Apache-2.0
#include "policy/slack_reclaimer.h"

#include <gtest/gtest.h>

#include <memory>

namespace powerccl {
namespace {

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
