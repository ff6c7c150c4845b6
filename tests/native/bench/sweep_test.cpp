// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "bench/measurement.h"
#include "bench/nccl_api.h"

namespace powerccl::bench {
namespace {

TEST(Iterations, FillTheTimeWithinBounds) {
  EXPECT_EQ(iterations_for(0.01, 0.25, 20), 25U);
  EXPECT_EQ(iterations_for(0.1, 0.25, 20), 20U);
  EXPECT_EQ(iterations_for(1e-9, 1, 1), 1'000'000U);
  EXPECT_EQ(iterations_for(1, 0, 1), 1U);
}

TEST(Median, OfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Nccl, CandidatesInOrder) {
  unsetenv("NCCL_LIBRARY");
  setenv("POWERCCL_NCCL_LIBRARY", "/wheel/libnccl.so.2", 1);
  EXPECT_EQ(nccl_candidates("/a.so"), (std::vector<std::string>{"/a.so"}));
  EXPECT_EQ(nccl_candidates(""), (std::vector<std::string>{"libnccl.so.2", "/wheel/libnccl.so.2"}));
  setenv("NCCL_LIBRARY", "/b.so", 1);
  EXPECT_EQ(nccl_candidates(""), (std::vector<std::string>{"/b.so"}));
  unsetenv("NCCL_LIBRARY");
  unsetenv("POWERCCL_NCCL_LIBRARY");
}

TEST(Nccl, VersionText) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace powerccl::bench
