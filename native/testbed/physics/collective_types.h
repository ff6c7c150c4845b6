// SPDX-License-Identifier: Apache-2.0
// Element types and reductions of collectives. Values are those of NCCL's ncclDataType_t and ncclRedOp_t.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace powerccl::physics {

enum class DataType : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,  // moved, never reduced
  kFloat8e5m2 = 11,
};

enum class Reduction : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kPreMulSum = 5 };

constexpr size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2:
      return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

// The arithmetic of collectives, on host memory.
// Reduces `count` elements of every input, in rank order, into every output.
//
// Works block by block, all reads of a block before its writes, so an output may be one of the inputs (in place).
// 16-bit floats accumulate in float. kAvg divides the sum by the number of inputs, toward zero for integers. kPreMulSum
// multiplies input i by scalars[i], whose first element_bytes(type) bytes hold an element. 8-bit floats are not
// reduced.
void reduce_elements(std::span<const void* const> inputs, std::span<void* const> outputs, size_t count, DataType type,
                     Reduction reduction, std::span<const uint64_t> scalars);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace powerccl::physics
