// SPDX-License-Identifier: Apache-2.0
#include "policy/elastic.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace powerccl {
namespace {

constexpr double kNaturalMhz = 1500;

// A job of four collectives an iteration, whose length follows the clock as `ms` says.
class Job {
 public:
  explicit Job(std::function<double(double mhz, uint64_t iteration)> ms) : ms_(std::move(ms)) { policy_->begin({}); }

  void run(double seconds) {
    const uint64_t until_ns = now_ns_ + static_cast<uint64_t>(seconds * 1e9);
    for (; now_ns_ < until_ns; ++iteration_) {
      const double part_ns = ms_(mhz(), iteration_) * 1e6 / kCalls;
      for (uint32_t i = 0; i < kCalls; ++i) {
        policy_->called(++calls_, i + 1, 0);
        policy_->started(calls_, now_ns_);
        if (i == 0) ask();  // the new clock is there when computation goes on
        now_ns_ += static_cast<uint64_t>(part_ns / 2);
        policy_->stopped(calls_, now_ns_);
        ask();
        if (policy_->wants_sample()) policy_->sampled(static_cast<uint32_t>(mhz()));
        now_ns_ += static_cast<uint64_t>(part_ns / 2);
      }
      longest_ms_ = std::max(longest_ms_, ms_(mhz(), iteration_));
    }
  }

  double mhz() const { return wanted_.mhz != 0 ? std::min<double>(wanted_.mhz, kNaturalMhz) : kNaturalMhz; }
  double lowest_mhz() const { return lowest_mhz_; }
  double longest_ms() const { return longest_ms_; }
  Elastic& policy() { return *policy_; }
  uint64_t now_ns() const { return now_ns_; }

 private:
  static constexpr uint32_t kCalls = 4;

  void ask() {
    wanted_ = policy_->wanted(now_ns_);
    lowest_mhz_ = std::min(lowest_mhz_, mhz());
  }

  std::function<double(double, uint64_t)> ms_;
  std::unique_ptr<Elastic> policy_ = std::make_unique<Elastic>();
  ClockPolicy::Wanted wanted_;
  uint64_t now_ns_ = 1000000000, calls_ = 0, iteration_ = 0;
  double lowest_mhz_ = kNaturalMhz, longest_ms_ = 0;
};

std::function<double(double, uint64_t)> following(double share) {
  return [share](double mhz, uint64_t) { return 100 * (1 + share * (kNaturalMhz / mhz - 1)); };
}

TEST(Elastic, TheLessTimeFollowsTheClockTheLowerItIs) {
  Job all(following(1)), half(following(0.5)), tenth(following(0.1));
  for (Job* job : {&all, &half, &tenth}) job->run(300);
  EXPECT_NEAR(all.lowest_mhz(), 1500 / 1.01, 5);
  EXPECT_NEAR(half.lowest_mhz(), 1500 / 1.02, 8);
  EXPECT_LT(tenth.lowest_mhz(), 1390);
  EXPECT_GT(tenth.lowest_mhz(), 1500 / 1.12);
}

TEST(Elastic, WhatJumpsBelowAClockIsLeftAgain) {
  Job job([](double mhz, uint64_t) { return mhz < 1200 ? 130.0 : 100.0; });
  job.run(600);
  EXPECT_GT(job.lowest_mhz(), 0.94 * 1200) << "no more than a step below";
  job.run(60);
  EXPECT_GE(job.policy().state().clock_mhz, 1200u);
  EXPECT_LT(job.policy().state().clock_mhz, 1230u);
}

TEST(Elastic, AJobThatChangesIsLeftAloneAndLearntAnew) {
  const auto changing = [](double mhz, uint64_t iteration) {
    return iteration < 3000 ? 100.0 : 120 * (1 + (kNaturalMhz / mhz - 1));
  };
  Job job(changing);
  job.run(290);
  EXPECT_LT(job.policy().state().clock_mhz, 1000u) << "nothing followed the clock";
  job.run(300);
  EXPECT_GT(job.policy().state().clock_mhz, 1450u);
}

TEST(Elastic, NothingIsManagedUntilTheJobIsKnown) {
  Job job(following(0));
  job.run(6);
  EXPECT_EQ(job.lowest_mhz(), kNaturalMhz);
  job.run(60);
  EXPECT_LT(job.lowest_mhz(), kNaturalMhz);
  job.policy().rest();
  EXPECT_EQ(job.policy().wanted(job.now_ns()).mhz, 0u) << "the communicators are gone";
}

// Iterations that differ by chance, and now and then one with a checkpoint.
TEST(Elastic, ChanceIsNoReason) {
  uint32_t state = 1;
  const auto noisy = [&state](double mhz, uint64_t iteration) {
    state = state * 1664525 + 1013904223;
    const double chance = (state >> 16) / 65536.0 - 0.5;
    return 100 * (1 + (kNaturalMhz / mhz - 1)) * (1 + 0.04 * chance) + (iteration % 200 == 199 ? 900 : 0);
  };
  Job job(noisy);
  job.run(900);
  EXPECT_GT(job.lowest_mhz(), 1500 / 1.04);
}

}  // namespace
}  // namespace powerccl
