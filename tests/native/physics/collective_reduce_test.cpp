// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "physics/collective_types.h"

namespace powerccl::physics {
namespace {

TEST(Half, RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    else
      EXPECT_EQ(float_to_half(value), half) << bits;
  }
}

TEST(Half, RoundsToNearestEvenAndOverflowsToInfinity) {
  EXPECT_EQ(float_to_half(1.0f), 0x3c00);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e9f), 0xfc00);
  EXPECT_EQ(float_to_half(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
}

TEST(Bfloat16, RoundTripsAndRounds) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_bfloat16(value), bits);
  }
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

template <typename T>
std::vector<T> reduce(std::vector<std::vector<T>> inputs, DataType type, Reduction reduction,
                      std::vector<uint64_t> scalars = {}) {
  std::vector<const void*> in;
  for (const auto& input : inputs) in.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  void* outputs[] = {out.data()};
  scalars.resize(inputs.size());
  reduce_elements(in, outputs, out.size(), type, reduction, scalars);
  return out;
}

TEST(Reduce, OperatorsOnIntegers) {
  const std::vector<std::vector<int32_t>> in{{1, -7, 100}, {5, 2, -3}, {-2, 4, 4}};
  EXPECT_EQ(reduce(in, DataType::kInt32, Reduction::kSum), (std::vector<int32_t>{4, -1, 101}));
  EXPECT_EQ(reduce(in, DataType::kInt32, Reduction::kProd), (std::vector<int32_t>{-10, -56, -1200}));
  EXPECT_EQ(reduce(in, DataType::kInt32, Reduction::kMax), (std::vector<int32_t>{5, 4, 100}));
  EXPECT_EQ(reduce(in, DataType::kInt32, Reduction::kMin), (std::vector<int32_t>{-2, -7, -3}));
  EXPECT_EQ(reduce(in, DataType::kInt32, Reduction::kAvg), (std::vector<int32_t>{1, 0, 33}));
}

TEST(Reduce, IntegersWrapAndUnsignedCompareAsUnsigned) {
  EXPECT_EQ(reduce<int8_t>({{127}, {1}}, DataType::kInt8, Reduction::kSum), (std::vector<int8_t>{-128}));
  EXPECT_EQ(reduce<uint8_t>({{200}, {100}}, DataType::kUint8, Reduction::kMax), (std::vector<uint8_t>{200}));
  EXPECT_EQ(reduce<int64_t>({{std::numeric_limits<int64_t>::max()}, {1}}, DataType::kInt64, Reduction::kSum),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
}

TEST(Reduce, SixteenBitFloatsAccumulateInFloat) {
  const uint16_t big = float_to_half(2048.0f), one = float_to_half(1.0f);
  // 2048 + 1 is not representable in half: only accumulation in float gives 2052.
  const auto sum = reduce<uint16_t>({{big}, {one}, {one}, {one}, {one}}, DataType::kFloat16, Reduction::kSum);
  EXPECT_EQ(half_to_float(sum[0]), 2052.0f);
}

TEST(Reduce, PreMulSumScalesEachInput) {
  const double half = 0.5, two = 2.0;
  std::vector<uint64_t> scalars(2);
  memcpy(&scalars[0], &half, sizeof half);
  memcpy(&scalars[1], &two, sizeof two);
  EXPECT_EQ(reduce<double>({{4.0}, {10.0}}, DataType::kFloat64, Reduction::kPreMulSum, scalars),
            (std::vector<double>{22.0}));
}

TEST(Reduce, InPlaceOverManyBlocks) {
  constexpr size_t kCount = 10'001;
  std::vector<float> a(kCount), b(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 2 * static_cast<float>(i);
  }
  const void* inputs[] = {a.data(), b.data()};
  void* outputs[] = {a.data(), b.data()};
  const uint64_t scalars[2] = {};
  reduce_elements(inputs, outputs, kCount, DataType::kFloat32, Reduction::kSum, scalars);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(a[i], 3 * static_cast<float>(i));
    ASSERT_EQ(b[i], 3 * static_cast<float>(i));
  }
}

}  // namespace
}  // namespace powerccl::physics
