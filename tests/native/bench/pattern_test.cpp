// SPDX-License-Identifier: Apache-2.0
// Tables, sizes and elements; and the reference against the plainest possible simulation of each pattern, with all
// ranks' data in arrays of elements.
#include "bench/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/verify.h"

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

TEST(Shape, ChunksAreWholeAndAligned) {
  const auto shape = [](Pattern pattern, size_t bytes, Type type, int ranks) {
    const Shape found = shape_of(pattern, bytes, type, ranks);
    return std::vector{found.count, found.size_bytes, found.send_count, found.recv_count};
  };
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(shape(Pattern::kAllReduce, 1000, Type::kFloat32, 8), (Sizes{250, 1000, 250, 250}));
  // 31 elements a rank, down to a multiple of 16 bytes.
  EXPECT_EQ(shape(Pattern::kAllGather, 1000, Type::kFloat32, 8), (Sizes{28, 28 * 4 * 8, 28, 28 * 8}));
  EXPECT_EQ(shape(Pattern::kReduceScatter, 1 << 20, Type::kFloat16, 8), (Sizes{1 << 16, 1 << 20, 1 << 19, 1 << 16}));
  EXPECT_EQ(shape(Pattern::kAllToAll, 1 << 20, Type::kFloat64, 4), (Sizes{1 << 15, 1 << 20, 1 << 17, 1 << 17}));
}

TEST(Shape, MayBeEmpty) {
  EXPECT_EQ(shape_of(Pattern::kGather, 64, Type::kFloat32, 8).size_bytes, 0U);
  EXPECT_EQ(shape_of(Pattern::kBroadcast, 0, Type::kFloat32, 8).count, 0U);
}

TEST(Names, RoundTrip) {
  for (size_t i = 0; i < kPatterns.size(); ++i) EXPECT_EQ(pattern_named(kPatterns[i].name), static_cast<Pattern>(i));
  EXPECT_EQ(pattern_named("alltoall_perf"), Pattern::kAllToAll);
  EXPECT_EQ(pattern_named("reduce-scatter"), Pattern::kReduceScatter);
  EXPECT_FALSE(pattern_named("train"));
}

TEST(Place, InPlaceFollowsNcclsRules) {
  const Shape shape = shape_of(Pattern::kAllGather, 256, Type::kFloat32, 4);
  Call call{Pattern::kAllGather, Type::kFloat32, Op::kSum, 0, 4, 3, shape, true, false};
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x2000U + 3 * 64);
  EXPECT_EQ(place(call, 0x1000, 0x2000).recv, 0x2000U);
  call.pattern = Pattern::kReduceScatter;
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x2000U);
  EXPECT_EQ(place(call, 0x1000, 0x2000).recv, 0x2000U + 3 * 64);
  call.in_place = false;
  EXPECT_EQ(place(call, 0x1000, 0x2000).send, 0x1000U);
}

TEST(Ways, AreThoseThatNcclHas) {
  std::string names[4];
  for (const WayInfo& way : kWays) {
    EXPECT_EQ(&info(way.value), &way);
    for (const PatternInfo& each : kPatterns) {
      if (carries_out(way.value, each.value)) names[&way - kWays.data()] += std::string(each.name) + " ";
    }
  }
  EXPECT_EQ(names[1], "all_reduce all_gather reduce_scatter ");
  EXPECT_EQ(names[2], "all_gather scatter gather all_to_all ");
  EXPECT_EQ(names[3], names[1]);
}

uint16_t bits_of(Type type, double value) {
  uint16_t bits = 0;
  store(type, &bits, value);
  return bits;
}

TEST(Half, KnownPatterns) {
  const std::pair<double, int> known[] = {
      {0, 0x0000},           {-0.0, 0x8000},
      {1, 0x3c00},           {-2, 0xc000},
      {65504, 0x7bff},       {65520, 0x7c00},
      {0x1p-24, 0x0001},     {0x1p-14, 0x0400},
      {1 + 0x1p-11, 0x3c00}, {1 + 3 * 0x1p-11, 0x3c02},  // ties, to even
      {2047.75, 0x6800},                                 // carries into the exponent
  };
  for (const auto& [value, bits] : known) EXPECT_EQ(bits_of(Type::kFloat16, value), bits) << value;
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
  const int numbers[] = {7, 6, 9, 8, 2, 4};
  for (size_t i = 0; i < kTypes.size(); ++i) EXPECT_EQ(kTypes[i].nccl, numbers[i]) << kTypes[i].name;
  for (size_t i = 0; i < kTypes.size(); ++i) EXPECT_EQ(kTypes[i].value, static_cast<Type>(i));
  EXPECT_EQ(static_cast<int>(Op::kAvg), 4);
  EXPECT_EQ(type_named("double"), Type::kFloat64);
  EXPECT_FALSE(type_named("float8"));
}

using Values = std::vector<double>;

Values decode(Type type, const std::vector<uint8_t>& bytes) {
  Values values(bytes.size() / info(type).bytes);
  for (size_t i = 0; i < values.size(); ++i) values[i] = load(type, bytes.data() + i * info(type).bytes);
  return values;
}
std::vector<uint8_t> encode(Type type, const Values& values) {
  std::vector<uint8_t> bytes(values.size() * info(type).bytes);
  for (size_t i = 0; i < values.size(); ++i) store(type, bytes.data() + i * info(type).bytes, values[i]);
  return bytes;
}

double rounded(Type type, double value) {
  uint8_t bytes[8];
  store(type, bytes, value);
  return load(type, bytes);
}

// Reduces in the type's own precision, one rank after the other, as a ring does; averages scale first, as NCCL does.
double reduce(Type type, Op op, const std::vector<Values>& data, size_t i) {
  const auto ranks = static_cast<double>(data.size());
  const bool scale = op == Op::kAvg && (info(type).mantissa_bits != 0);
  double result = scale ? rounded(type, data[0][i] / ranks) : data[0][i];
  for (size_t rank = 1; rank < data.size(); ++rank) {
    const double value = scale ? rounded(type, data[rank][i] / ranks) : data[rank][i];
    if (op == Op::kProd) result = rounded(type, result * value);
    if (op == Op::kMax) result = std::max(result, value);
    if (op == Op::kMin) result = std::min(result, value);
    if (op == Op::kSum || op == Op::kAvg) result = rounded(type, result + value);
  }
  return op == Op::kAvg && !(info(type).mantissa_bits != 0) ? std::floor(result / ranks) : result;
}

Values simulate(const Call& call, const std::vector<Values>& sent) {
  const size_t n = call.shape.count;
  const auto own = static_cast<size_t>(call.rank);
  const auto root = static_cast<size_t>(call.root);
  const auto ranks = static_cast<size_t>(call.ranks);
  Values result;
  const auto take = [&](size_t rank, size_t first) {
    result.insert(result.end(), sent[rank].begin() + static_cast<long>(first),
                  sent[rank].begin() + static_cast<long>(first + n));
  };
  switch (call.pattern) {
    case Pattern::kAllReduce:
    case Pattern::kReduce:
      if (call.pattern == Pattern::kReduce && own != root) break;
      for (size_t i = 0; i < n; ++i) result.push_back(reduce(call.type, call.op, sent, i));
      break;
    case Pattern::kReduceScatter:
      for (size_t i = 0; i < n; ++i) result.push_back(reduce(call.type, call.op, sent, own * n + i));
      break;
    case Pattern::kBroadcast:
      take(root, 0);
      break;
    case Pattern::kSendReceive:
      take((own + ranks - 1) % ranks, 0);
      break;
    case Pattern::kScatter:
      take(root, own * n);
      break;
    case Pattern::kAllGather:
    case Pattern::kGather:
      for (size_t rank = 0; rank < ranks && (call.pattern == Pattern::kAllGather || own == root); ++rank) take(rank, 0);
      break;
    case Pattern::kAllToAll:
      for (size_t rank = 0; rank < ranks; ++rank) take(rank, own * n);
      break;
  }
  return result;
}

struct Case {
  Pattern pattern;
  int ranks, root;
};

class Reference : public testing::TestWithParam<Case> {};

TEST_P(Reference, AgreesWithSimulationAndCountsEachFault) {
  const auto [pattern, ranks, root] = GetParam();
  for (const TypeInfo& type : kTypes) {
    for (const OpInfo& op : kOperators) {
      if (!info(pattern).reduces && op.value != Op::kSum) continue;
      const Shape shape = shape_of(pattern, 70001, type.value, ranks);  // longer than one period for narrow types
      Call call{pattern, type.value, op.value, root, ranks, 0, shape, false, false};
      std::vector<Values> sent;
      for (call.rank = 0; call.rank < ranks; ++call.rank) sent.push_back(decode(type.value, send_data(call)));
      for (call.rank = 0; call.rank < ranks; ++call.rank) {
        Values received = simulate(call, sent);
        ASSERT_EQ(received.size(), received_count(call)) << type.name;
        ASSERT_EQ(count_wrong(call, encode(type.value, received)), 0U)
            << type.name << " " << op.name << " rank " << call.rank;
        if (received.empty()) continue;
        // 100 is no value that anybody sends or that sums of eight can hide within a tolerance.
        received.front() += 100;
        received[received.size() / 2] += 100;
        received.back() = type.mantissa_bits != 0 ? std::nan("") : received.back() - 100;
        ASSERT_EQ(count_wrong(call, encode(type.value, received)), 3U) << type.name << " " << op.name;
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const PatternInfo& each : kPatterns) {
    for (const int ranks : {2, 3, 8}) all.push_back({each.value, ranks, each.has_root() ? ranks - 1 : 0});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Reference, testing::ValuesIn(cases()), [](const testing::TestParamInfo<Case>& instance) {
  return std::string(powerccl::bench::info(instance.param.pattern).name) + "_" + std::to_string(instance.param.ranks);
});

TEST(Reference, SeesChunksOfTheWrongRank) {
  const Shape shape = shape_of(Pattern::kAllGather, 8 * 4096, Type::kFloat32, 8);
  Call call{Pattern::kAllGather, Type::kFloat32, Op::kSum, 0, 8, 0, shape, false, false};
  std::vector<uint8_t> received;
  for (const int from : {0, 1, 3, 2, 4, 5, 6, 7}) {
    call.rank = from;
    const auto data = send_data(call);
    received.insert(received.end(), data.begin(), data.end());
  }
  call.rank = 0;
  EXPECT_GT(count_wrong(call, received), 2 * shape.count * 9 / 10);
}

TEST(Reference, SumsOfEightAreExactInEveryType) {
  for (const TypeInfo& type : kTypes) {
    EXPECT_EQ(tolerance(type.value, Op::kSum, 8, 5), 0) << type.name;
    EXPECT_EQ(tolerance(type.value, Op::kAvg, 8, 5), 0) << type.name;
  }
  EXPECT_GT(tolerance(Type::kFloat16, Op::kAvg, 3, 5), 0);
  EXPECT_GT(tolerance(Type::kBfloat16, Op::kSum, 64, 5), 0);
}

}  // namespace
}  // namespace powerccl::bench
