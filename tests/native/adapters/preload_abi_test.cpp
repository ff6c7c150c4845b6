// SPDX-License-Identifier: Apache-2.0
// What preloaded functions know of CUDA's ABI, against its header.
#include "adapters/nccl/preload_abi.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include "adapters/nccl/cuda.h"

namespace powerccl::nccl {
namespace {

TEST(PreloadAbi, IsCudas) {
  EXPECT_EQ(offsetof(CUlaunchConfig, hStream), offsetof(LaunchConfig, stream));
  EXPECT_EQ(static_cast<int>(CUDA_ERROR_NOT_SUPPORTED), kErrorNotSupported);
  EXPECT_EQ(static_cast<int>(CUDA_ERROR_NOT_READY), kCudaNotReady);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_LEGACY), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD), 2u);
}

TEST(PreloadAbi, TypesHaveNcclsSizes) {
  constexpr int kFloat16 = 6, kFloat64 = 8, kFloat8 = 11;
  EXPECT_EQ(bytes_of_type(kFloat16), 2);
  EXPECT_EQ(bytes_of_type(kFloat64), 8);
  EXPECT_EQ(bytes_of_type(kFloat8), 1);
  EXPECT_EQ(bytes_of_type(12), 1);
  EXPECT_EQ(bytes_of_type(-1), 1);
}

}  // namespace
}  // namespace powerccl::nccl
