// SPDX-License-Identifier: Apache-2.0
// The parts of CUDA's and NCCL's ABI that preloaded functions use, declared by us. Handles are addresses, enums are
// ints.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace powerccl::nccl {

// CUDA's dim3: passed by value.
struct Dim3 {
  unsigned x, y, z;
};

// The runtime's and the driver's description of a launch have the stream at the same offset. In front of it are two
// times three dimensions and the size of shared memory (8 bytes aligned, or 4 and 4 of padding).
struct LaunchConfig {
  unsigned dimensions[6];
  uint64_t shared_bytes;
  void* stream;
};
static_assert(offsetof(LaunchConfig, stream) == 32);

constexpr int kShrinkAborts = 1;         // NCCL_SHRINK_ABORT
constexpr int kInt8 = 0;                 // ncclInt8
constexpr int kErrorNotSupported = 801;  // cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED

constexpr int kNcclSuccess = 0, kNcclInvalidUsage = 5, kNcclInProgress = 7;
// ncclUniqueId: passed by value.
struct UniqueId {
  char bytes[128];
};

// Bytes of an element, by ncclDataType_t; 1 if unknown.
constexpr uint8_t bytes_of_type(int type) {
  constexpr uint8_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < static_cast<int>(sizeof(kBytes)) ? kBytes[type] : 1;
}

}  // namespace powerccl::nccl
