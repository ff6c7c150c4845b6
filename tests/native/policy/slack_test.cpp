// SPDX-License-Identifier: Apache-2.0
#include "policy/slack.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace powerccl {
namespace {

constexpr double kMs = 1e6;

// A rank of a pipeline: computes, meets its neighbours, who are later than it by `wait` ms where it has slack.
struct Part {
  double compute_ms, transfer_ms, wait_ms;
};

class Rank {
 public:
  explicit Rank(std::vector<Part> parts, double transition_ms = 1) : parts_(std::move(parts)) {
    times_.call.add(0.3 * kMs);
    times_.transition.add(transition_ms * kMs);
    times_.measured = true;
  }

  // Iterations in which computation takes as much longer as the stages say; what it takes longer, it waits less.
  void run(int iterations, bool too_long = false) {
    for (int i = 0; i < iterations; ++i) {
      for (size_t k = 0; k < parts_.size(); ++k) {
        const Part& part = parts_[k];
        double until = 0;
        const double stretch = slack->at(now(k), length(), times_, &until);
        const double longer = left_alone_ ? 0 : part.compute_ms * (stretch - 1);
        now_ms_ += part.compute_ms + longer;
        draw_ = draw_ * 1664525 + 1013904223;
        const double spare_ms = part.wait_ms * (1 + vary_ * ((draw_ >> 16) % 1000 / 500.0 - 1));
        const double wait_ms = spare_ms > longer ? spare_ms - longer : 0;
        if (longer > spare_ms) late_ms_ += longer - spare_ms;
        const uint64_t call = ++calls_;
        timetable->called(call, static_cast<uint32_t>(1 + k), 450);
        joint->least_us(static_cast<uint32_t>(1 + k), static_cast<uint32_t>(part.transfer_ms * 1000));
        timetable->started(call, ns());
        timetable->waited(call, ns());
        now_ms_ += part.transfer_ms + wait_ms;
        timetable->stopped(call, ns());
      }
      timetable->settle();
      while (timetable->settled() && timetable->complete(learnt_)) {
        timetable->learn(learnt_++, false);
        if (learnt_ < 4) continue;
        if (left_alone_) {
          slack->left_alone();
        } else if (slack->iteration(*timetable, learnt_ - 1, joint.get(), true, too_long)) {
          slack->arrange(*timetable, times_, true);
        }
      }
    }
  }
  // Iterations in which nothing is managed.
  void leave_alone(int iterations) {
    left_alone_ = true;
    run(iterations);
    left_alone_ = false;
  }
  // From now on what a part waits for differs from one iteration to the next by up to this share.
  void vary(double share) { vary_ = share; }
  // In the middle of a part's computation.
  double stretch_at(size_t part) const {
    double until = 0;
    return slack->at(now(part), length(), times_, &until);
  }
  double late_ms() const { return late_ms_; }
  void forget_lateness() { late_ms_ = 0; }

  std::unique_ptr<Slack> slack = std::make_unique<Slack>();
  std::unique_ptr<Timetable> timetable = std::make_unique<Timetable>();
  std::unique_ptr<Joint> joint = std::make_unique<Joint>();

 private:
  uint64_t ns() const { return static_cast<uint64_t>(now_ms_ * kMs); }
  double length() const {
    double ms = 0;
    for (const Part& part : parts_) ms += part.compute_ms + part.transfer_ms + part.wait_ms;
    return ms * kMs;
  }
  // In the middle of a part's computation, from the start of the iteration's first kernel.
  double now(size_t part) const {
    if (part == 0) return length() - 0.5 * parts_[0].compute_ms * kMs;
    double at_ms = parts_[0].transfer_ms + parts_[0].wait_ms + 0.5 * parts_[part].compute_ms;
    for (size_t k = 1; k < part; ++k) at_ms += parts_[k].compute_ms + parts_[k].transfer_ms + parts_[k].wait_ms;
    return at_ms * kMs;
  }

  std::vector<Part> parts_;
  SwitchTimes times_;
  double now_ms_ = 1000, late_ms_ = 0, vary_ = 0;
  uint32_t draw_ = 1;
  uint64_t calls_ = 0, learnt_ = 0;
  bool left_alone_ = false;
};

TEST(Slack, ARankThatWaitsInItsOnlyCollectiveTakesItUp) {
  Rank rank({{60, 10, 20}});
  rank.run(300);
  EXPECT_EQ(rank.slack->stages(), 1u);
  EXPECT_GT(rank.stretch_at(0), 1.25);
  EXPECT_LT(rank.stretch_at(0), 1.34);
  rank.forget_lateness();
  rank.run(100);
  EXPECT_EQ(rank.late_ms(), 0);
}

TEST(Slack, WhatIsLateMakesNothingSlower) {
  Rank rank({{60, 10, 0}});
  rank.run(300);
  EXPECT_FALSE(rank.slack->any());
}

TEST(Slack, ComputationThatMayNotBeLateKeepsItsClock) {
  // The first stage of a pipeline: its first micro-batch is waited for, with the others it waits for its neighbour.
  std::vector<Part> parts{{30, 2, 0}};
  for (int i = 0; i < 5; ++i) parts.push_back({8, 1, 2});
  Rank rank(parts);
  rank.run(400);
  EXPECT_EQ(rank.slack->stages(), 2u);
  EXPECT_LT(rank.stretch_at(0), 1.01);
  for (size_t part = 1; part < 6; ++part) EXPECT_GT(rank.stretch_at(part), 1.15) << part;
  rank.forget_lateness();
  rank.run(100);
  EXPECT_EQ(rank.late_ms(), 0);
}

TEST(Slack, OneClockForAnIterationMayBeLateByALittle) {
  std::vector<Part> parts{{6, 2, 0}};
  for (int i = 0; i < 5; ++i) parts.push_back({8, 1, 2});
  constexpr double kComputedMs = 46;
  Rank rank(parts, 100);
  rank.run(400);
  EXPECT_EQ(rank.slack->stages(), 1u);
  EXPECT_GT(rank.stretch_at(3), 1.08);
  rank.forget_lateness();
  rank.run(100);
  EXPECT_GT(rank.late_ms(), 0);
  EXPECT_LT(rank.late_ms() / 100, 0.0175 * kComputedMs);
  // Much of it is late: then it is not worth that.
  Rank other({{40, 2, 0}, {20, 1, 5}}, 100);
  other.run(400);
  EXPECT_FALSE(other.slack->any());
}

// By how much that is late by intent does not show: it must not be taken for less slack each time it is looked at, nor
// what a block left alone changed for what differs from one iteration to the next.
TEST(Slack, OneClockThatIsLateByIntentStaysWhereItIs) {
  std::vector<Part> parts{{6, 2, 0.5}};
  for (int i = 0; i < 5; ++i) parts.push_back({8, 1, 2});
  Rank rank(parts, 100);
  rank.vary(0.2);
  rank.run(400);
  rank.leave_alone(60);
  double sum = 0;
  for (int i = 0; i < 400; ++i) {
    rank.run(1);
    sum += rank.stretch_at(3);
    ASSERT_GT(rank.stretch_at(3), 1.07) << i;  // a step down, where chance made it look late, and up again
  }
  EXPECT_GT(sum / 400, 1.14);
}

TEST(Slack, WhatIsClearlyWaitedForNeedsNoWideMargin) {
  // Half a ms of 54, ten times over: two thousandths of an iteration would be a fifth of it.
  std::vector<Part> parts;
  for (int i = 0; i < 10; ++i) parts.push_back({4, 1, 0.5});
  Rank rank(parts);
  rank.run(400);
  for (size_t part = 0; part < parts.size(); ++part) {
    EXPECT_GT(rank.stretch_at(part), 1.11) << part;
    EXPECT_LT(rank.stretch_at(part), 1.125) << part;
  }
}

// What changes at once for all iterations is not what differs from one to the next.
TEST(Slack, ItOutlastsIterationsThatAreLeftAlone) {
  std::vector<Part> parts(12, {2.5, 0.7, 0.65});
  Rank rank(parts);
  rank.run(400);
  const double before = rank.stretch_at(4);
  ASSERT_GT(before, 1.15);
  rank.leave_alone(60);
  for (int i = 0; i < 200; ++i) {
    rank.run(1);
    ASSERT_GT(rank.stretch_at(4), before - 0.02) << i;
  }
}

TEST(Slack, ItIsGivenBackWhereIterationsTakeTooLong) {
  Rank rank({{60, 10, 20}});
  rank.run(300);
  ASSERT_TRUE(rank.slack->any());
  rank.run(150, true);
  EXPECT_FALSE(rank.slack->any());
}

TEST(Slack, TheClockIsAskedForAheadOfComputationThatMayNotBeLate) {
  std::vector<Part> parts{{30, 2, 0}};
  for (int i = 0; i < 5; ++i) parts.push_back({8, 1, 2});
  Rank rank(parts);
  rank.run(400);
  SwitchTimes times;
  times.call.add(0.3 * kMs);
  times.transition.add(kMs);
  double until = 0;
  // The last kernel of those with slack ends at 57 ms, and transfers from 56 ms on; then comes what may not be late.
  EXPECT_GT(rank.slack->at(50 * kMs, 87 * kMs, times, &until), 1.1);
  EXPECT_NEAR(until / kMs, 56 - 1.3, 0.1);
  EXPECT_EQ(rank.slack->at(56 * kMs, 87 * kMs, times, &until), 1.0);
}

}  // namespace
}  // namespace powerccl
