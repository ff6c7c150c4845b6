// SPDX-License-Identifier: Apache-2.0
#include "policy/rhythm.h"

#include <gtest/gtest.h>

#include <vector>

namespace powerccl {
namespace {

// Calls of so many iterations; how many it took until the rhythm was known, or -1.
int iterations_until_known(Rhythm* rhythm, const std::vector<uint32_t>& iteration, int most) {
  for (int i = 0; i < most; ++i) {
    for (const uint32_t kind : iteration) rhythm->called(kind);
    if (rhythm->period() == iteration.size()) return i + 1;
  }
  return -1;
}

TEST(Rhythm, IsKnownAfterThreeIterations) {
  Rhythm rhythm;
  EXPECT_EQ(iterations_until_known(&rhythm, {1, 2, 3, 4, 5, 6}, 10), 3);
}

TEST(Rhythm, AnIterationOfOneCall) {
  Rhythm rhythm;
  EXPECT_EQ(iterations_until_known(&rhythm, {7}, 100), static_cast<int>(Rhythm::kFewest) + 1);
}

TEST(Rhythm, EqualCallsInsideAnIteration) {
  Rhythm rhythm;
  std::vector<uint32_t> iteration(96, 1);  // tensor parallel: the same all-reduce in every layer
  iteration.push_back(2);
  EXPECT_GT(iterations_until_known(&rhythm, iteration, 10), 0);
  EXPECT_EQ(rhythm.period(), 97u);
}

TEST(Rhythm, HoldsForAsLongAsCallsRepeat) {
  Rhythm rhythm;
  ASSERT_GT(iterations_until_known(&rhythm, {10, 11, 12, 13, 14}, 10), 0);
  const uint64_t since = rhythm.since();
  for (int i = 0; i < 500; ++i) {
    for (uint32_t kind = 10; kind < 15; ++kind) EXPECT_EQ(rhythm.kind(rhythm.called(kind)), kind);
    ASSERT_EQ(rhythm.period(), 5u);
  }
  EXPECT_EQ(rhythm.since(), since);
}

TEST(Rhythm, AnotherOneIsFoundWhenItChanges) {
  Rhythm rhythm;
  ASSERT_GT(iterations_until_known(&rhythm, {1, 2, 3, 4}, 10), 0);
  const uint64_t since = rhythm.since();
  rhythm.called(9);
  EXPECT_EQ(rhythm.period(), 0u);
  EXPECT_GT(iterations_until_known(&rhythm, {5, 6, 5, 7, 8}, 10), 0);
  EXPECT_GT(rhythm.since(), since);
}

TEST(Rhythm, WhatNeverRepeatsIsNone) {
  Rhythm rhythm;
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    rhythm.called(static_cast<uint32_t>(state >> 40));
    ASSERT_EQ(rhythm.period(), 0u);
  }
}

TEST(Rhythm, TooLongAnIterationIsNone) {
  Rhythm rhythm;
  for (int i = 0; i < 5; ++i)
    for (uint32_t kind = 0; kind < Rhythm::kLongest + 1; ++kind) {
      rhythm.called(kind);
      ASSERT_EQ(rhythm.period(), 0u);
    }
}

}  // namespace
}  // namespace powerccl
