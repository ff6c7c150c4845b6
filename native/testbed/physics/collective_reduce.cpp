// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "physics/collective_types.h"

namespace powerccl::physics {

float half_to_float(uint16_t half) {
  const uint32_t bits = half;
  const uint32_t sign = (bits & 0x8000u) << 16u;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13u);
  // Scaling by a power of two handles subnormals and normals alike.
  const float value = std::bit_cast<float>(magnitude << 13u) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16u & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Adding 0.5 lets the FPU round the subnormal's bits into the low mantissa, to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13u & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13u);
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16u);
}

uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16u | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16u & 1u)) >> 16u);
}

namespace {

constexpr size_t kBlock = 2048;

template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value load(Stored bits) { return bits; }
  static Stored store(Value value) { return value; }
};
struct Half {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored bits) { return half_to_float(bits); }
  static Stored store(Value value) { return float_to_half(value); }
};
struct Bfloat16 {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored bits) { return bfloat16_to_float(bits); }
  static Stored store(Value value) { return float_to_bfloat16(value); }
};

// Integers wrap as on the GPU; unsigned arithmetic says so without undefined behaviour.
template <typename V>
V add(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return static_cast<V>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}
template <typename V>
V multiply(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return static_cast<V>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}
template <typename V>
V larger(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return std::max(a, b);
  else
    return std::fmax(a, b);
}
template <typename V>
V smaller(V a, V b) {
  if constexpr (std::is_integral_v<V>)
    return std::min(a, b);
  else
    return std::fmin(a, b);
}

template <typename V, typename F>
void combine(V* into, const V* values, size_t n, F&& f) {
  for (size_t i = 0; i < n; ++i) into[i] = f(into[i], values[i]);
}

template <typename Type>
void reduce_as(std::span<const void* const> inputs, std::span<void* const> outputs, size_t count, Reduction reduction,
               std::span<const uint64_t> scalars) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  Stored stored[kBlock];
  Value sum[kBlock];
  Value values[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      memcpy(stored, static_cast<const Stored*>(inputs[rank]) + begin, n * sizeof(Stored));
      Value* to = rank == 0 ? sum : values;
      for (size_t i = 0; i < n; ++i) to[i] = Type::load(stored[i]);
      if (reduction == Reduction::kPreMulSum) {
        Stored bits;
        memcpy(&bits, &scalars[rank], sizeof bits);
        const Value scalar = Type::load(bits);
        for (size_t i = 0; i < n; ++i) to[i] = multiply(to[i], scalar);
      }
      if (rank == 0) continue;
      switch (reduction) {
        case Reduction::kProd:
          combine(sum, values, n, multiply<Value>);
          break;
        case Reduction::kMax:
          combine(sum, values, n, larger<Value>);
          break;
        case Reduction::kMin:
          combine(sum, values, n, smaller<Value>);
          break;
        case Reduction::kSum:
        case Reduction::kAvg:
        case Reduction::kPreMulSum:
          combine(sum, values, n, add<Value>);
          break;
      }
    }
    if (reduction == Reduction::kAvg) {
      const auto ranks = static_cast<Value>(inputs.size());
      for (size_t i = 0; i < n; ++i) sum[i] = static_cast<Value>(sum[i] / ranks);
    }
    for (size_t i = 0; i < n; ++i) stored[i] = Type::store(sum[i]);
    for (void* output : outputs) memcpy(static_cast<Stored*>(output) + begin, stored, n * sizeof(Stored));
  }
}

}  // namespace

void reduce_elements(std::span<const void* const> inputs, std::span<void* const> outputs, size_t count, DataType type,
                     Reduction reduction, std::span<const uint64_t> scalars) {
  switch (type) {
    case DataType::kInt8:
      return reduce_as<Plain<int8_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kUint8:
      return reduce_as<Plain<uint8_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kInt32:
      return reduce_as<Plain<int32_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kUint32:
      return reduce_as<Plain<uint32_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kInt64:
      return reduce_as<Plain<int64_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kUint64:
      return reduce_as<Plain<uint64_t>>(inputs, outputs, count, reduction, scalars);
    case DataType::kFloat16:
      return reduce_as<Half>(inputs, outputs, count, reduction, scalars);
    case DataType::kFloat32:
      return reduce_as<Plain<float>>(inputs, outputs, count, reduction, scalars);
    case DataType::kFloat64:
      return reduce_as<Plain<double>>(inputs, outputs, count, reduction, scalars);
    case DataType::kBfloat16:
      return reduce_as<Bfloat16>(inputs, outputs, count, reduction, scalars);
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2:
      return;
  }
}

}  // namespace powerccl::physics
