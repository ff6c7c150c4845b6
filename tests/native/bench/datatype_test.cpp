// SPDX-License-Identifier: Apache-2.0
#include "bench/datatype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace powerccl::bench {
namespace {

uint16_t bits_of(Type type, double value) {
  uint16_t bits = 0;
  store(type, &bits, value);
  return bits;
}

TEST(Half, KnownPatterns) {
  EXPECT_EQ(bits_of(Type::kFloat16, 0), 0x0000);
  EXPECT_EQ(bits_of(Type::kFloat16, -0.0), 0x8000);
  EXPECT_EQ(bits_of(Type::kFloat16, 1), 0x3c00);
  EXPECT_EQ(bits_of(Type::kFloat16, -2), 0xc000);
  EXPECT_EQ(bits_of(Type::kFloat16, 65504), 0x7bff);
  EXPECT_EQ(bits_of(Type::kFloat16, 65520), 0x7c00);
  EXPECT_EQ(bits_of(Type::kFloat16, std::ldexp(1, -24)), 0x0001);
  EXPECT_EQ(bits_of(Type::kFloat16, std::ldexp(1, -14)), 0x0400);
  EXPECT_EQ(bits_of(Type::kFloat16, 1 + std::ldexp(1, -11)), 0x3c00);      // a tie, to even
  EXPECT_EQ(bits_of(Type::kFloat16, 1 + 3 * std::ldexp(1, -11)), 0x3c02);  // a tie, to even
  EXPECT_EQ(bits_of(Type::kFloat16, 2047.75), 0x6800);                     // carries into the exponent
}

TEST(Half, EveryPatternReturns) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double value = load(Type::kFloat16, &bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(bits_of(Type::kFloat16, value), bits) << pattern;
  }
}

TEST(Bfloat16, RoundsToEven) {
  EXPECT_EQ(bits_of(Type::kBfloat16, 1), 0x3f80);
  EXPECT_EQ(bits_of(Type::kBfloat16, 1 + std::ldexp(1, -8)), 0x3f80);
  EXPECT_EQ(bits_of(Type::kBfloat16, 1 + 3 * std::ldexp(1, -8)), 0x3f82);
  const uint16_t minus_three = 0xc040;
  EXPECT_EQ(load(Type::kBfloat16, &minus_three), -3);
}

TEST(Types, NumbersAreNcclsOwn) {
  EXPECT_EQ(info(Type::kFloat32).nccl, 7);
  EXPECT_EQ(info(Type::kFloat16).nccl, 6);
  EXPECT_EQ(info(Type::kBfloat16).nccl, 9);
  EXPECT_EQ(info(Type::kFloat64).nccl, 8);
  EXPECT_EQ(info(Type::kInt32).nccl, 2);
  EXPECT_EQ(info(Type::kInt64).nccl, 4);
  EXPECT_EQ(info(Op::kAvg).nccl, 4);
  EXPECT_EQ(type_named("double"), Type::kFloat64);
  EXPECT_FALSE(type_named("float8"));
}

}  // namespace
}  // namespace powerccl::bench
