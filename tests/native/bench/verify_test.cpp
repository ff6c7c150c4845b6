// SPDX-License-Identifier: Apache-2.0
// The reference against the plainest possible simulation of each pattern, with all ranks' data in arrays of elements.
#include "bench/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace powerccl::bench {
namespace {

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
  const bool scale = op == Op::kAvg && is_float(type);
  double result = scale ? rounded(type, data[0][i] / ranks) : data[0][i];
  for (size_t rank = 1; rank < data.size(); ++rank) {
    const double value = scale ? rounded(type, data[rank][i] / ranks) : data[rank][i];
    if (op == Op::kProd) result = rounded(type, result * value);
    if (op == Op::kMax) result = std::max(result, value);
    if (op == Op::kMin) result = std::min(result, value);
    if (op == Op::kSum || op == Op::kAvg) result = rounded(type, result + value);
  }
  return op == Op::kAvg && !is_float(type) ? std::floor(result / ranks) : result;
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
  for (const TypeInfo& type : types()) {
    for (const OpInfo& op : operators()) {
      if (!info(pattern).reduces && op.op != Op::kSum) continue;
      const Shape shape = shape_of(pattern, 70001, type.type, ranks);  // longer than one period for narrow types
      Call call{pattern, type.type, op.op, root, ranks, 0, shape, false, false};
      std::vector<Values> sent;
      for (call.rank = 0; call.rank < ranks; ++call.rank) sent.push_back(decode(type.type, send_data(call)));
      for (call.rank = 0; call.rank < ranks; ++call.rank) {
        Values received = simulate(call, sent);
        ASSERT_EQ(received.size(), received_count(call)) << type.name;
        ASSERT_EQ(count_wrong(call, encode(type.type, received)), 0U)
            << type.name << " " << op.name << " rank " << call.rank;
        if (received.empty()) continue;
        // 100 is no value that anybody sends or that sums of eight can hide within a tolerance.
        received.front() += 100;
        received[received.size() / 2] += 100;
        received.back() = type.mantissa_bits != 0 ? std::nan("") : received.back() - 100;
        ASSERT_EQ(count_wrong(call, encode(type.type, received)), 3U) << type.name << " " << op.name;
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const PatternInfo& each : patterns()) {
    for (const int ranks : {2, 3, 8}) all.push_back({each.pattern, ranks, each.has_root ? ranks - 1 : 0});
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
  for (const TypeInfo& type : types()) {
    EXPECT_EQ(tolerance(type.type, Op::kSum, 8, 5), 0) << type.name;
    EXPECT_EQ(tolerance(type.type, Op::kAvg, 8, 5), 0) << type.name;
  }
  EXPECT_GT(tolerance(Type::kFloat16, Op::kAvg, 3, 5), 0);
  EXPECT_GT(tolerance(Type::kBfloat16, Op::kSum, 64, 5), 0);
}

}  // namespace
}  // namespace powerccl::bench
