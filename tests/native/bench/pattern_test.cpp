// SPDX-License-Identifier: Apache-2.0
#include "bench/pattern.h"

#include <gtest/gtest.h>

namespace powerccl::bench {
namespace {

TEST(BusFactor, AsNcclTestsDefinesIt) {
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllReduce, 2), 1);
  for (const Pattern pattern :
       {Pattern::kAllGather, Pattern::kReduceScatter, Pattern::kAllToAll, Pattern::kGather, Pattern::kScatter}) {
    EXPECT_DOUBLE_EQ(bus_factor(pattern, 8), 0.875) << info(pattern).name;
  }
  for (const Pattern pattern : {Pattern::kBroadcast, Pattern::kReduce, Pattern::kSendReceive}) {
    EXPECT_DOUBLE_EQ(bus_factor(pattern, 8), 1) << info(pattern).name;
  }
}

TEST(Shape, WholeMessages) {
  const Shape shape = shape_of(Pattern::kAllReduce, 1000, Type::kFloat32, 8);
  EXPECT_EQ(shape.count, 250U);
  EXPECT_EQ(shape.size_bytes, 1000U);
  EXPECT_EQ(shape.send_count, 250U);
  EXPECT_EQ(shape.recv_count, 250U);
}

TEST(Shape, ChunksAreWholeAndAligned) {
  const Shape gathered = shape_of(Pattern::kAllGather, 1000, Type::kFloat32, 8);
  EXPECT_EQ(gathered.count, 28U);  // 31 elements a rank, down to a multiple of 16 bytes
  EXPECT_EQ(gathered.size_bytes, 28U * 4 * 8);
  EXPECT_EQ(gathered.send_count, 28U);
  EXPECT_EQ(gathered.recv_count, 28U * 8);
  const Shape scattered = shape_of(Pattern::kReduceScatter, 1 << 20, Type::kFloat16, 8);
  EXPECT_EQ(scattered.send_count, 1U << 19);
  EXPECT_EQ(scattered.recv_count, 1U << 16);
  EXPECT_EQ(scattered.count, 1U << 16);
  const Shape exchanged = shape_of(Pattern::kAllToAll, 1 << 20, Type::kFloat64, 4);
  EXPECT_EQ(exchanged.send_count, exchanged.recv_count);
  EXPECT_EQ(exchanged.count, 1U << 15);
}

TEST(Shape, MayBeEmpty) {
  EXPECT_EQ(shape_of(Pattern::kGather, 64, Type::kFloat32, 8).size_bytes, 0U);
  EXPECT_EQ(shape_of(Pattern::kBroadcast, 0, Type::kFloat32, 8).count, 0U);
}

TEST(Names, RoundTrip) {
  for (const PatternInfo& each : patterns()) EXPECT_EQ(pattern_named(each.name), each.pattern);
  EXPECT_EQ(pattern_named("alltoall_perf"), Pattern::kAllToAll);
  EXPECT_EQ(pattern_named("reduce-scatter"), Pattern::kReduceScatter);
  EXPECT_FALSE(pattern_named("train"));
}

TEST(Place, InPlaceFollowsNcclsRules) {
  Call call{Pattern::kAllGather,
            Type::kFloat32,
            Op::kSum,
            0,
            4,
            3,
            shape_of(Pattern::kAllGather, 256, Type::kFloat32, 4),
            true,
            false};
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x2000U + 3 * 64);
  EXPECT_EQ(place(call, 0x1000, 0x2000).recv, 0x2000U);
  call.pattern = Pattern::kReduceScatter;
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x2000U);
  EXPECT_EQ(place(call, 0x1000, 0x2000).recv, 0x2000U + 3 * 64);
  call.in_place = false;
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x1000U);
}

}  // namespace
}  // namespace powerccl::bench
