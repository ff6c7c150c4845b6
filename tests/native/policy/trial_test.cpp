// SPDX-License-Identifier: Apache-2.0
#include "policy/trial.h"

#include <gtest/gtest.h>

#include <random>

namespace powerccl {
namespace {

// Of so many trials the share that ended so, and how many iterations of each kind it took on average.
double share(Trial::Verdict wanted, double slowdown, double noise, double budget, double* iterations = nullptr) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, noise);
  constexpr int kTrials = 400;
  int found = 0;
  double sum = 0;
  for (int i = 0; i < kTrials; ++i) {
    Trial trial;
    uint32_t n = 0;
    while (trial.verdict(budget) == Trial::Verdict::kOpen) {
      trial.iteration(false, static_cast<uint64_t>(1e8 * (1 + normal(random))));
      trial.iteration(true, static_cast<uint64_t>(1e8 * (1 + slowdown + normal(random))));
      ++n;
    }
    found += trial.verdict(budget) == wanted ? 1 : 0;
    sum += n;
  }
  if (iterations != nullptr) *iterations = sum / kTrials;
  return static_cast<double>(found) / kTrials;
}

TEST(Trial, SaysNothingBeforeItHasSeenEnough) {
  Trial trial;
  for (uint32_t i = 0; i + 1 < Trial::kFewest; ++i) {
    trial.iteration(false, 100);
    trial.iteration(true, 200);
  }
  EXPECT_EQ(trial.verdict(0.01), Trial::Verdict::kOpen);
}

TEST(Trial, TellsHarmlessFromTooSlow) {
  double iterations = 0;
  EXPECT_GT(share(Trial::Verdict::kHarmless, 0.0, 0.005, 0.01, &iterations), 0.97);
  EXPECT_LT(iterations, 12);
  EXPECT_GT(share(Trial::Verdict::kTooSlow, 0.05, 0.005, 0.01, &iterations), 0.99);
  EXPECT_LT(iterations, 6);
}

TEST(Trial, NoiseTakesLongerAndIsRarelyMistaken) {
  EXPECT_GT(share(Trial::Verdict::kTooSlow, 0.03, 0.02, 0.01), 0.95);
  EXPECT_GT(share(Trial::Verdict::kHarmless, -0.01, 0.02, 0.01), 0.95);
}

// Iterations of a mixture of experts differ by 5 %: after 64 of them the best guess is off by as much as the budget.
TEST(Trial, WhatIsNotKnownIsNotCalledTooSlow) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal(0, 0.05);
  int too_slow = 0, in_the_end = 0;
  for (int i = 0; i < 100; ++i) {
    Trial trial;
    for (uint32_t n = 0; n < 100; ++n) {
      trial.iteration(false, static_cast<uint64_t>(1e8 * (1 + normal(random))));
      trial.iteration(true, static_cast<uint64_t>(1e8 * (1.003 + normal(random))));
    }
    EXPECT_TRUE(trial.unclear(0.01));
    too_slow += trial.verdict(0.01) == Trial::Verdict::kTooSlow;
    for (uint32_t n = 0; n < Trial::kMostOfAll; ++n) {
      trial.iteration(false, static_cast<uint64_t>(1e8 * (1 + normal(random))));
      trial.iteration(true, static_cast<uint64_t>(1e8 * (1.03 + normal(random))));
    }
    EXPECT_FALSE(trial.unclear(0.01));
    in_the_end += trial.verdict(0.01) == Trial::Verdict::kTooSlow;
  }
  EXPECT_LT(too_slow, 5);  // one in six by the best guess
  EXPECT_GT(in_the_end, 95);
}

TEST(Trial, ACheckpointIsLeftOut) {
  Trial trial;
  for (int i = 0; i < 20; ++i) {
    trial.iteration(false, 1000 + i % 3);
    trial.iteration(true, i == 10 ? 30'000 : 1000 + i % 3);
  }
  EXPECT_EQ(trial.verdict(0.01), Trial::Verdict::kHarmless);
  EXPECT_EQ(trial.count(true), 19u);
}

TEST(Trial, WhatStaysLongIsTakenForWhatItIs) {
  Trial trial;
  for (int i = 0; i < 40; ++i) {
    trial.iteration(false, 1000 + i % 3);
    trial.iteration(true, (i < 10 ? 1000 : 2000) + i % 3);
  }
  EXPECT_EQ(trial.verdict(0.01), Trial::Verdict::kTooSlow);
}

TEST(Trial, TheIntervalHoldsTheTruth) {
  std::mt19937 random(2);
  std::normal_distribution<double> normal(0, 0.01);
  int held = 0;
  for (int i = 0; i < 500; ++i) {
    Trial trial;
    for (int n = 0; n < 16; ++n) {
      trial.iteration(false, static_cast<uint64_t>(1e8 * (1 + normal(random))));
      trial.iteration(true, static_cast<uint64_t>(1e8 * (1.02 + normal(random))));
    }
    const Trial::Interval found = trial.slowdown();
    held += found.low <= 0.02 && 0.02 <= found.high ? 1 : 0;
  }
  EXPECT_GT(held, 475);
}

// Where an iteration ends differs by 1 %, and the next one begins there: what one lacks the next one has.
TEST(Trial, WhatOneIterationLacksTheNextOneHas) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 0.007);
  int held = 0;
  double wide = 0, wide_alone = 0;
  for (int i = 0; i < 200; ++i) {
    Trial trial, alone;
    for (const bool managed : {false, true}) {
      double end = normal(random), before = 0;
      for (int n = 0; n < 64; ++n) {
        const double length = managed ? 1.005 : 1;
        before = end;
        end = normal(random);
        trial.iteration(managed, static_cast<uint64_t>(1e8 * (length + end - before)));
        alone.iteration(managed, static_cast<uint64_t>(1e8 * (length + normal(random) - normal(random))));
      }
    }
    const Trial::Interval found = trial.slowdown();
    held += found.low <= 0.005 && 0.005 <= found.high ? 1 : 0;
    wide += found.high - found.low;
    wide_alone += alone.slowdown().high - alone.slowdown().low;
  }
  EXPECT_GT(held, 195);
  EXPECT_LT(wide, 0.6 * wide_alone);
}

}  // namespace
}  // namespace powerccl
