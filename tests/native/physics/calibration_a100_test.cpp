// SPDX-License-Identifier: Apache-2.0
// Big Red 200's nodes against what study E published (docs/concepts/emulator-calibration.md): links only, power is
// ours.
#include "model.h"

namespace powerccl::physics {
namespace {

constexpr double kGradients = 700e6;  // GPT-350M, 2 bytes a parameter

struct Row {
  double mib, two_nodes_us, one_node_us;
};

// The published table's times.
constexpr Row kPublished[] = {{16, 2990.5, 205.0},  {32, 7861.7, 331.5},  {48, 9115.2, 465.3},  {64, 14081, 617.9},
                              {80, 14998, 743.5},   {96, 18074, 876.4},   {112, 21282, 1023.2}, {128, 25198, 1139.8},
                              {144, 27169, 1222.3}, {160, 30548, 1364.1}, {176, 34752, 1359.6}, {192, 37054, 1470.5}};

TEST(A100Calibration, AllReduceByTime) {
  const Platform node = platform_or_fail("a100x4");
  const Platform nodes = platform_or_fail("a100x8-two-nodes");
  for (const Row& row : kPublished) {
    EXPECT_NEAR(node.collective_ns(Pattern::kAllReduce, row.mib * kMiB, 1410, 4) / 1e3, row.one_node_us,
                0.005 * row.one_node_us)
        << row.mib << " MiB";
    EXPECT_NEAR(nodes.collective_ns(Pattern::kAllReduce, row.mib * kMiB, 1410, 8) / 1e3, row.two_nodes_us,
                0.005 * row.two_nodes_us)
        << row.mib << " MiB";
  }
}

TEST(A100Calibration, WhatTrainingGathersAndScatters) {
  const Platform node = platform_or_fail("a100x4");
  const Platform nodes = platform_or_fail("a100x8-two-nodes");
  for (const Pattern pattern : {Pattern::kAllGather, Pattern::kReduceScatter}) {
    const double within_ms = node.collective_ns(pattern, kGradients, 1410, 4) / 1e6;
    EXPECT_GE(within_ms, 4);
    EXPECT_LE(within_ms, 5);
    EXPECT_NEAR(nodes.collective_ns(pattern, kGradients, 1410, 8) / 1e6, 62, 0.5);
  }
}

}  // namespace
}  // namespace powerccl::physics
