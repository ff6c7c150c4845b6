// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/enum_names.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include "abi/trace.h"
#include "adapters/nccl/cuda.h"
#include "adapters/nccl/preload_abi.h"

namespace powerccl::nccl {
namespace {

TEST(EnumNames, FunctionsArePatterns) {
  EXPECT_EQ(pattern_of("AllReduce"), POWERCCL_ALL_REDUCE);
  EXPECT_EQ(pattern_of("AllGather"), POWERCCL_ALL_GATHER);
  EXPECT_EQ(pattern_of("ReduceScatter"), POWERCCL_REDUCE_SCATTER);
  EXPECT_EQ(pattern_of("Reduce"), POWERCCL_REDUCE);
  EXPECT_EQ(pattern_of("Broadcast"), POWERCCL_BROADCAST);
  EXPECT_EQ(pattern_of("Send"), POWERCCL_SEND_RECEIVE);
  EXPECT_EQ(pattern_of("Recv"), POWERCCL_SEND_RECEIVE);
  EXPECT_EQ(pattern_of("AlltoAll"), POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(pattern_of("Scatter"), POWERCCL_SCATTER);
  EXPECT_EQ(pattern_of("Gather"), POWERCCL_GATHER);
  EXPECT_EQ(pattern_of("PutSignal"), POWERCCL_PATTERN_UNKNOWN);
  EXPECT_EQ(pattern_of(""), POWERCCL_PATTERN_UNKNOWN);
  EXPECT_EQ(pattern_of(nullptr), POWERCCL_PATTERN_UNKNOWN);
}

TEST(EnumNames, DatatypesHaveSizes) {
  EXPECT_EQ(datatype_of("ncclInt8").bytes, 1);
  EXPECT_EQ(datatype_of("ncclFloat16").bytes, 2);
  EXPECT_EQ(datatype_of("ncclBfloat16").number, 9);
  EXPECT_EQ(datatype_of("ncclFloat32").number, 7);
  EXPECT_EQ(datatype_of("ncclFloat32").bytes, 4);
  EXPECT_EQ(datatype_of("ncclUint64").bytes, 8);
  EXPECT_EQ(datatype_of("ncclFloat4").number, 255);
  EXPECT_EQ(datatype_of(nullptr).number, 255);
}

TEST(EnumNames, AlgorithmsAndProtocols) {
  EXPECT_EQ(algorithm_of("RING"), POWERCCL_ALGO_RING);
  EXPECT_EQ(algorithm_of("NVLS"), POWERCCL_ALGO_NVLS);
  EXPECT_EQ(algorithm_of("NVLS_TREE"), POWERCCL_ALGO_NVLS_TREE);
  EXPECT_EQ(algorithm_of("Unknown"), POWERCCL_ALGO_UNKNOWN);
  EXPECT_EQ(protocol_of("LL"), POWERCCL_PROTO_LL);
  EXPECT_EQ(protocol_of("LL128"), POWERCCL_PROTO_LL128);
  EXPECT_EQ(protocol_of(nullptr), POWERCCL_PROTO_UNKNOWN);
}

TEST(Cuda, NothingIsLoadedThatTheJobHasNotLoaded) {
  const Cuda cuda = find_cuda();
  EXPECT_EQ(cuda.ctx_get_device, nullptr);
  const GpuIdentity gpu = current_gpu(cuda);
  EXPECT_EQ(gpu.device, -1);
  EXPECT_STREQ(gpu.uuid, "");
  char text[32];
  library_text(text, sizeof(text), "profiler v6");
  EXPECT_STREQ(text, "nccl profiler v6");
}

}  // namespace

// What preloaded functions know of CUDA's ABI, against its header.
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
