// SPDX-License-Identifier: Apache-2.0
// NCCL reports functions, types, algorithms and protocols by their names.
#pragma once
#include <stdint.h>

namespace powerccl::nccl {

// "AllReduce" and so on; POWERCCL_PATTERN_UNKNOWN for others. Send, Recv and SendRecv are send-receive.
uint8_t pattern_of(const char* function);

struct Datatype {
  uint8_t number;  // ncclDataType_t; 255: unknown
  uint8_t bytes;   // of one element; 1 if unknown
};
Datatype datatype_of(const char* name);

uint8_t algorithm_of(const char* name);
uint8_t protocol_of(const char* name);

}  // namespace powerccl::nccl
