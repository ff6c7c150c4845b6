// SPDX-License-Identifier: Apache-2.0
#include "bench/datatype.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace powerccl::bench {
namespace {

template <typename T>
void put(void* where, T value) {
  std::memcpy(where, &value, sizeof value);
}
template <typename T>
T get(const void* where) {
  T value;
  std::memcpy(&value, where, sizeof value);
  return value;
}

constexpr uint32_t kHalfSign = 0x8000, kHalfInfinity = 0x7c00, kHalfNan = 0x7e00, kHalfFractions = 1024;

uint16_t to_half(double value) {
  const uint32_t sign = std::signbit(value) ? kHalfSign : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return kHalfNan;
  if (size == 0) return static_cast<uint16_t>(sign);
  if (size >= 65520) return static_cast<uint16_t>(sign + kHalfInfinity);
  int exponent = 0;
  std::frexp(size, &exponent);
  exponent = std::max(exponent - 1, -14);  // subnormals share the least exponent
  const double ulp = std::ldexp(1.0, exponent - 10);
  const auto steps = static_cast<uint32_t>(std::nearbyint(size / ulp));  // 1024..2048 where normal
  // The leading one of a normal number is not stored: it adds one to the exponent, as does rounding up to 2048.
  return static_cast<uint16_t>(sign + static_cast<uint32_t>(exponent + 14) * kHalfFractions + steps);
}

double from_half(uint16_t stored) {
  const uint32_t bits = stored;
  const auto exponent = static_cast<int>(bits % kHalfSign / kHalfFractions);
  const uint32_t fraction = bits % kHalfFractions;
  double size = 0;
  if (exponent == 31) {
    size = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    size = std::ldexp(fraction, -24);
  } else {
    size = std::ldexp(fraction + kHalfFractions, exponent - 25);
  }
  return bits >= kHalfSign ? -size : size;
}

uint16_t to_bfloat(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace

const std::vector<TypeInfo>& types() {
  static const std::vector<TypeInfo> all{
      {Type::kFloat32, "float32", "float", 7, 4, 24},     {Type::kFloat16, "float16", "half", 6, 2, 11},
      {Type::kBfloat16, "bfloat16", "bfloat16", 9, 2, 8}, {Type::kFloat64, "float64", "double", 8, 8, 53},
      {Type::kInt32, "int32", "int32", 2, 4, 0},          {Type::kInt64, "int64", "int64", 4, 8, 0},
  };
  return all;
}

const std::vector<OpInfo>& operators() {
  static const std::vector<OpInfo> all{
      {Op::kSum, "sum", 0}, {Op::kProd, "prod", 1}, {Op::kMax, "max", 2}, {Op::kMin, "min", 3}, {Op::kAvg, "avg", 4},
  };
  return all;
}

const TypeInfo& info(Type type) {
  return types()[static_cast<size_t>(type)];
}
const OpInfo& info(Op op) {
  return operators()[static_cast<size_t>(op)];
}

std::optional<Type> type_named(const std::string& name) {
  for (const TypeInfo& each : types()) {
    if (name == each.name || name == each.nccl_tests) return each.type;
  }
  return std::nullopt;
}

std::optional<Op> op_named(const std::string& name) {
  for (const OpInfo& each : operators()) {
    if (name == each.name) return each.op;
  }
  return std::nullopt;
}

void store(Type type, void* where, double value) {
  switch (type) {
    case Type::kFloat32:
      return put(where, static_cast<float>(value));
    case Type::kFloat16:
      return put(where, to_half(value));
    case Type::kBfloat16:
      return put(where, to_bfloat(value));
    case Type::kFloat64:
      return put(where, value);
    case Type::kInt32:
      return put(where, static_cast<int32_t>(value));
    case Type::kInt64:
      return put(where, static_cast<int64_t>(value));
  }
}

double load(Type type, const void* where) {
  switch (type) {
    case Type::kFloat32:
      return get<float>(where);
    case Type::kFloat16:
      return from_half(get<uint16_t>(where));
    case Type::kBfloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(get<uint16_t>(where)) << 16U);
    case Type::kFloat64:
      return get<double>(where);
    case Type::kInt32:
      return get<int32_t>(where);
    case Type::kInt64:
      return static_cast<double>(get<int64_t>(where));
  }
  return 0;
}

}  // namespace powerccl::bench
