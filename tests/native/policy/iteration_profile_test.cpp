// SPDX-License-Identifier: Apache-2.0
#include "policy/iteration_profile.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "policy/iteration_detector.h"

namespace powerccl {
namespace {

struct Kernel {
  uint32_t kind;
  double gap_ms, lasts_ms;  // after the start of the one before it
  double timed = 1;         // how often
};

class Player {
 public:
  // Calls, and runs, so many iterations.
  void play(const std::vector<Kernel>& iteration, int count, double jitter = 0.001) {
    for (int i = 0; i < count; ++i) {
      for (const Kernel& kernel : iteration) {
        now_ms_ += kernel.gap_ms * (1 + jitter * std::normal_distribution<double>()(random_));
        const uint64_t call = ++calls_;
        profile->called(call, kernel.kind);
        if (kernel.timed < 1 && std::uniform_real_distribution<double>()(random_) >= kernel.timed) continue;
        const uint64_t start_ns = static_cast<uint64_t>(now_ms_ * 1e6);
        EXPECT_TRUE(profile->started(call, start_ns));
        EXPECT_TRUE(profile->stopped(call, start_ns + static_cast<uint64_t>(kernel.lasts_ms * 1e6)));
        profile->settle();
      }
    }
  }
  std::unique_ptr<IterationProfile> profile = std::make_unique<IterationProfile>();

 private:
  std::mt19937_64 random_{5};
  double now_ms_ = 1000;
  uint64_t calls_ = 0;
};

TEST(IterationProfile, KindsAloneTellAnIteration) {
  Player player;
  player.play({{1, 20, 5}, {2, 6, 5}, {3, 6, 5}}, 8);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 3u);
}

TEST(IterationProfile, EqualCallsAreToldApartByTheirTimes) {
  Player player;
  player.play({{1, 60, 15}, {1, 15.5, 15}, {1, 15.5, 15}, {1, 15.5, 15}}, 10);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 4u);
  // It begins behind the longest gap.
  for (uint64_t i = 0; player.profile->complete(i); ++i) player.profile->learn(i);
  EXPECT_NEAR(player.profile->position(0).duration.mean, 15e6, 1e5);
  EXPECT_NEAR(player.profile->position(1).offset.mean, 15.5e6, 2e5);
  EXPECT_NEAR(player.profile->length().mean, 106.5e6, 1e6);
}

// As in DDP with eight equal buckets at a power limit: some ranks' times differ too much to tell buckets apart.
TEST(IterationProfile, RanksOfAHostTakeTheLongestThatAnyHasFound) {
  const std::vector<Kernel> step{{1, 30, 5}, {1, 15, 5}, {1, 15, 5}, {1, 15, 5}};
  Player clear, noisy, alone;
  NodeState node;
  clear.profile->begin_with(&node);
  noisy.profile->begin_with(&node);
  for (int i = 0; i < 40; ++i) {
    clear.play(step, 4);
    noisy.play(step, 4, 0.25);
    alone.play(step, 4, 0.25);
  }
  EXPECT_EQ(clear.profile->period(), 4u);
  EXPECT_EQ(noisy.profile->period(), 4u);
  EXPECT_EQ(alone.profile->period(), 1u);
}

// As recorded from DDP with eight equal buckets: a burst that looks like a period of its own, and long gaps.
TEST(IterationProfile, ABurstOfEqualCallsIsNoIterationForLong) {
  std::vector<Kernel> step{{1, 10.9, 2.3}};
  for (const double gap : {2.3, 2.7, 2.7, 2.7, 3.4, 2.1, 2.1}) step.push_back({1, gap, 2});
  Player player;
  player.play({{1, 2.1, 2}}, 20);
  player.play(step, 20);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 8u);
}

// Tensor-parallel layers: most calls are as far apart as the ones before them, so that one call looks like an
// iteration.
TEST(IterationProfile, LayersThatAreAlikeAreNoIterations) {
  std::vector<Kernel> step(32, {1, 1.1, 0.3});
  for (size_t i = 16; i < step.size(); ++i) step[i].gap_ms = 2.2;
  Player player;
  player.play(step, 12);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 32u);
}

// What the host has called and the GPU has not run says nothing about times.
TEST(IterationProfile, CallsThatRunLaterAreWaitedFor) {
  const auto profile = std::make_unique<IterationProfile>();
  for (uint64_t call = 1; call <= 200; ++call) profile->called(call, 1);
  profile->started(1, 1000000);
  EXPECT_FALSE(profile->settle());
  for (uint64_t call = 2; call <= 20; ++call) profile->started(call, call * 1000000);
  EXPECT_FALSE(profile->settle());
}

// A mark is looked at when the host comes round, which may be in the next iteration.
TEST(IterationProfile, WaitsThatAreToldOfLateCount) {
  Player player;
  const std::vector<Kernel> iteration{{1, 60, 15}, {2, 20, 15}};
  player.play(iteration, 12);
  ASSERT_TRUE(player.profile->settled());
  uint64_t learnt = 0;
  for (int i = 0; i < 6; ++i) {
    const IterationProfile::Run before = *player.profile->latest();
    player.play(iteration, 1);
    while (player.profile->complete(learnt)) player.profile->learn(learnt++);
    // What ended the iteration before, now that this one has been learnt from.
    EXPECT_TRUE(player.profile->waited(before.call, before.start_ns + 5000000));
  }
  EXPECT_GT(player.profile->position(1).exposed_from.count, 2u);
  EXPECT_NEAR(player.profile->position(1).exposed_from.mean, 5e6, 1e5);
}

TEST(IterationProfile, AnotherIterationIsLearntAnew) {
  Player player;
  player.play({{1, 20, 5}, {2, 6, 5}}, 20);
  ASSERT_TRUE(player.profile->settled());
  const uint64_t before = player.profile->generation();
  player.play({{3, 30, 5}, {4, 6, 5}, {5, 6, 5}}, 1);
  EXPECT_FALSE(player.profile->settled());
  player.play({{3, 30, 5}, {4, 6, 5}, {5, 6, 5}}, 10);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 3u);
  EXPECT_GT(player.profile->generation(), before);
}

TEST(IterationProfile, WhatIsIrregularIsTakenForItsShortestPeriod) {
  Player player;
  player.play({{1, 20, 5}, {2, 6, 5}}, 120, 0.3);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_LE(player.profile->period(), 8u);
}

// Sharded data parallelism under a power limit: no two iterations are quite alike, and two are no better than one.
// As recorded from GPT-350M over sockets on eight GPUs: half a second or 0.8 s each, which is never regular.
TEST(IterationProfile, LongIterationsNeedNotBeManyToBeTakenAsTheyAre) {
  Player player;
  player.play({{1, 50, 290}, {2, 291, 0.3}, {3, 1.5, 290}}, 20, 0.3);
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 3u);
}

TEST(IterationProfile, IrregularIterationsAreNotTakenForPairs) {
  std::vector<Kernel> iteration;
  for (uint32_t i = 0; i < 17; ++i) iteration.push_back({1 + (i == 0 ? 5 : i % 2), i % 3 == 0 ? 11.0 : 5.0, 3.7});
  for (const double jitter : {0.08, 0.12, 0.16}) {
    Player player;
    player.play(iteration, 40, jitter);
    ASSERT_TRUE(player.profile->settled()) << jitter;
    EXPECT_EQ(player.profile->period(), 17u) << jitter;
    const uint64_t generation = player.profile->generation();
    player.play(iteration, 300, jitter);
    EXPECT_EQ(player.profile->period(), 17u) << jitter;
    EXPECT_EQ(player.profile->generation(), generation) << jitter;
  }
}

// As seen in a mixture of experts: the expert load of one rank went up and down by turns at first.
TEST(IterationProfile, IterationsThatAreAlikeInPairsByChanceAreNoPairsForLong) {
  std::vector<Kernel> light, heavy;
  for (uint32_t i = 0; i < 9; ++i) {
    light.push_back({1 + i / 2 % 2 + (i == 8 ? 5 : 0), i % 2 != 0 ? 6.0 : 8.0, 3.7});
    heavy.push_back(light.back());
    if (i % 2 != 0) heavy.back().gap_ms = 11;
  }
  for (const int pairs : {4, 8}) {
    Player player;
    for (int i = 0; i < pairs; ++i) {
      player.play(light, 1, 0.01);
      player.play(heavy, 1, 0.01);
    }
    player.play(light, 100, 0.3);
    ASSERT_TRUE(player.profile->settled()) << pairs;
    EXPECT_EQ(player.profile->period(), 9u) << pairs;
  }
}

// Ranks see the same calls at other times, and must count the same iterations: no multiple may seem better to one.
TEST(IterationProfile, AllRanksCountTheCallsOfIrregularJobsAlike) {
  std::vector<Kernel> quick, slow;
  for (uint32_t i = 0; i < 12; ++i) {
    quick.push_back({1 + i, 3, 1});
    slow.push_back({1 + i, 9, 1});
  }
  Player player;
  for (int i = 0; i < 100; ++i) {
    player.play(quick, 1, 0.2);
    player.play(slow, 1, 0.2);
  }
  ASSERT_TRUE(player.profile->settled());
  EXPECT_EQ(player.profile->period(), 12u);
}

// As recorded of tensor-parallel generation on four H200s: NCCL tells of half of the short kernels, and of long ones
// always. A rank whose iterations began with one that is hardly ever timed saw few of them.
TEST(IterationProfile, AnIterationBeginsWithAKernelThatIsAlwaysTimed) {
  std::vector<Kernel> token{{1, 2, 1}};
  for (uint32_t i = 1; i < 40; ++i) token.push_back({2 + i % 3, i == 20 ? 6.0 : 1.0, 0.02, i == 20 ? 0.3 : 0.5});
  Player player;
  player.play(token, 12, 0.3);
  token[3].kind = 9;  // what comes later is another iteration
  player.play(token, 100, 0.3);
  ASSERT_TRUE(player.profile->settled());
  ASSERT_EQ(player.profile->period(), 40u);
  const uint64_t running = player.profile->iteration_of(player.profile->latest()->sequence);
  for (uint64_t i = running - 10; i < running; ++i) EXPECT_TRUE(player.profile->complete(i)) << running - i;
}

TEST(IterationProfile, CallsOfLongAgoAreForgotten) {
  Player player;
  player.play({{1, 2, 1}}, 10000);
  EXPECT_FALSE(player.profile->started(1, 5));
  EXPECT_FALSE(player.profile->stopped(1, 5));
  EXPECT_FALSE(player.profile->waited(1, 5));
  EXPECT_FALSE(player.profile->started(999999, 5));
}

// Calls of so many iterations; how many it took until the period was known, or -1.
int iterations_until_known(IterationDetector* detector, const std::vector<uint32_t>& iteration, int most) {
  for (int i = 0; i < most; ++i) {
    for (const uint32_t kind : iteration) detector->called(kind);
    if (detector->period() == iteration.size()) return i + 1;
  }
  return -1;
}

TEST(IterationDetector, IsKnownAfterThreeIterations) {
  IterationDetector detector;
  EXPECT_EQ(iterations_until_known(&detector, {1, 2, 3, 4, 5, 6}, 10), 3);
}

TEST(IterationDetector, AnIterationOfOneCall) {
  IterationDetector detector;
  EXPECT_EQ(iterations_until_known(&detector, {7}, 100), static_cast<int>(IterationDetector::kFewest) + 1);
}

TEST(IterationDetector, EqualCallsInsideAnIteration) {
  IterationDetector detector;
  std::vector<uint32_t> iteration(96, 1);  // tensor parallel: the same all-reduce in every layer
  iteration.push_back(2);
  EXPECT_GT(iterations_until_known(&detector, iteration, 10), 0);
  EXPECT_EQ(detector.period(), 97u);
}

TEST(IterationDetector, HoldsForAsLongAsCallsRepeat) {
  IterationDetector detector;
  ASSERT_GT(iterations_until_known(&detector, {10, 11, 12, 13, 14}, 10), 0);
  const uint64_t since = detector.since();
  for (int i = 0; i < 500; ++i) {
    for (uint32_t kind = 10; kind < 15; ++kind) EXPECT_EQ(detector.kind(detector.called(kind)), kind);
    ASSERT_EQ(detector.period(), 5u);
  }
  EXPECT_EQ(detector.since(), since);
}

TEST(IterationDetector, AnotherOneIsFoundWhenItChanges) {
  IterationDetector detector;
  ASSERT_GT(iterations_until_known(&detector, {1, 2, 3, 4}, 10), 0);
  const uint64_t since = detector.since();
  detector.called(9);
  EXPECT_EQ(detector.period(), 0u);
  EXPECT_GT(iterations_until_known(&detector, {5, 6, 5, 7, 8}, 10), 0);
  EXPECT_GT(detector.since(), since);
}

TEST(IterationDetector, WhatNeverRepeatsIsNone) {
  IterationDetector detector;
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    detector.called(static_cast<uint32_t>(state >> 40));
    ASSERT_EQ(detector.period(), 0u);
  }
}

TEST(IterationDetector, TooLongAnIterationIsNone) {
  IterationDetector detector;
  for (int i = 0; i < 5; ++i)
    for (uint32_t kind = 0; kind < IterationDetector::kLongest + 1; ++kind) {
      detector.called(kind);
      ASSERT_EQ(detector.period(), 0u);
    }
}

}  // namespace

}  // namespace powerccl
