// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "bench/mpi/report.h"

namespace powerccl::bench::mpi {
namespace {

TEST(Spread, OfAnOddNumber) {
  const Spread spread = Spread::of({5, 1, 4, 2, 3});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.low, 2);
  EXPECT_EQ(spread.high, 4);
  EXPECT_EQ(spread.mean, 3);
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 5);
}

TEST(Spread, LiesBetweenNeighbours) {
  const Spread spread = Spread::of({4, 1, 3, 2});
  EXPECT_EQ(spread.median, 2.5);
  EXPECT_EQ(spread.low, 1.75);
  EXPECT_EQ(spread.high, 3.25);
}

TEST(Spread, OfOneIsThatOne) {
  const Spread spread = Spread::of({7});
  EXPECT_EQ(spread.median, 7);
  EXPECT_EQ(spread.low, 7);
  EXPECT_EQ(spread.high, 7);
}

TEST(Spread, OfNothingIsNullInJson) {
  EXPECT_TRUE(std::isnan(Spread::of({}).median));
  EXPECT_NE(Spread::of({}).json().text.find("\"median\": null"), std::string::npos);
}

TEST(Clock, ComputingTakesItsTimeOfTheCore) {
  const int64_t begin_ns = now_ns();
  compute_us(2000);
  EXPECT_GE(now_ns() - begin_ns, 2'000'000);
  const int64_t without_ns = now_ns();
  compute_us(0);
  EXPECT_LT(now_ns() - without_ns, 2'000'000'000);
}

}  // namespace
}  // namespace powerccl::bench::mpi
