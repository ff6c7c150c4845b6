// SPDX-License-Identifier: Apache-2.0
// The arithmetic of collectives, on host memory.
#pragma once
#include <cstdint>
#include <span>

#include "physics/collective_types.h"

namespace powerccl::physics {

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
