// SPDX-License-Identifier: Apache-2.0
#include "policy/iteration_detector.h"

#include <gtest/gtest.h>

#include <vector>

namespace powerccl {
namespace {

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
