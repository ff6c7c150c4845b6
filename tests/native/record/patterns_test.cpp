// SPDX-License-Identifier: Apache-2.0
#include "record/patterns.h"

#include <gtest/gtest.h>

#include <string>

namespace powerccl::test {
namespace {

Classified of(uint32_t nranks, uint32_t sends, uint32_t receives, uint64_t each = 100) {
  return classify({sends, receives, sends * each, receives * each}, nranks);
}

#define EXPECT_IS(classified, expected_pattern, expected_bytes)  \
  do {                                                           \
    const Classified its = (classified);                         \
    EXPECT_EQ(its.pattern, expected_pattern);                    \
    EXPECT_EQ(its.bytes, static_cast<uint64_t>(expected_bytes)); \
  } while (false)

TEST(Patterns, NamesGoBothWays) {
  for (uint8_t pattern = 0; pattern < POWERCCL_PATTERNS; ++pattern) {
    ASSERT_NE(pattern_name(pattern), nullptr);
    EXPECT_EQ(pattern_by_name(pattern_name(pattern)), pattern);
  }
  EXPECT_EQ(pattern_name(POWERCCL_PATTERN_UNKNOWN), nullptr);
  EXPECT_EQ(pattern_by_name("allreduce"), POWERCCL_PATTERN_UNKNOWN);
}

TEST(Patterns, GroupsAreToldApartByTheirCounts) {
  EXPECT_IS(of(8, 8, 8), POWERCCL_ALL_TO_ALL, 800);
  EXPECT_IS(of(2, 2, 2), POWERCCL_ALL_TO_ALL, 200);
  EXPECT_IS(of(8, 8, 1), POWERCCL_SCATTER, 800);  // NCCL's own root
  EXPECT_IS(of(8, 8, 0), POWERCCL_SCATTER, 800);
  EXPECT_IS(of(8, 1, 8), POWERCCL_GATHER, 800);
  EXPECT_IS(of(8, 0, 8), POWERCCL_GATHER, 800);
  EXPECT_IS(of(2, 2, 1), POWERCCL_SCATTER, 200);
  EXPECT_IS(of(2, 1, 2), POWERCCL_GATHER, 200);
}

TEST(Patterns, OwnPartMayBeLeftOut) {
  EXPECT_IS(of(8, 7, 7), POWERCCL_ALL_TO_ALL, 800);
  EXPECT_IS(of(8, 7, 0), POWERCCL_SCATTER, 800);
  EXPECT_IS(of(8, 0, 7), POWERCCL_GATHER, 800);
}

TEST(Patterns, TheRestIsSendReceive) {
  EXPECT_IS(of(2, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 0, 1), POWERCCL_SEND_RECEIVE, 100);  // a scatter's leaf, or a pipeline's stage
  EXPECT_IS(of(8, 1, 0), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 2, 2), POWERCCL_SEND_RECEIVE, 200);
  EXPECT_IS(of(8, 3, 7), POWERCCL_SEND_RECEIVE, 700);
  EXPECT_IS(of(1, 1, 1), POWERCCL_SEND_RECEIVE, 100);
  EXPECT_IS(of(8, 0, 0), POWERCCL_SEND_RECEIVE, 0);
}

TEST(Patterns, SizeClassesSpanAllSizes) {
  EXPECT_EQ(size_class(0), 0u);
  EXPECT_EQ(size_class(1), 1u);
  EXPECT_EQ(size_class(1023), size_class(512));
  EXPECT_NE(size_class(1024), size_class(1023));
  EXPECT_LT(size_class(UINT64_MAX), kSizeClasses);
}

}  // namespace
}  // namespace powerccl::test
