// SPDX-License-Identifier: Apache-2.0
// NCCL's public ABI as of 2.28.9, declared by us: values, layouts and signatures are its facts, the text is ours.
//
// Every function exists twice, as ncclX (weak) and pncclX (strong), so that interposers find both. NCCL_API defines the
// strong one and aliases the weak one to it.
#pragma once
#include <cuda.h>

#include <climits>
#include <cstddef>

#include "abi/nccl_profiler.h"
#include "abi/nccl_tuner.h"

namespace powerccl::emulated_nccl {
using namespace nccl;  // the plugins' interfaces
}

inline constexpr int kNcclVersion = 22809;

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12,
};

enum ncclRedOp_t : int { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 };
enum ncclScalarResidence_t : int { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclWindow_vidmem {  // ours: what of it is registered
  const char* begin;
  size_t bytes;
};
using ncclWindow_t = ncclWindow_vidmem*;

inline constexpr int kUniqueIdBytes = 128;
struct ncclUniqueId {
  char internal[kUniqueIdBytes];
};

inline constexpr int kConfigUndefined = INT_MIN;
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kSplitNoColor = -1;
inline constexpr unsigned kShrinkAbort = 1;
inline constexpr int kWindowSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
inline constexpr int kCtaPolicyEfficiency = 1;
inline constexpr int kCtaPolicyZero = 2;  // NCCL_CTA_POLICY_ZERO: copy engines where they can

// Grows at its end from version to version; `size` says how much of it the caller knows.
struct ncclConfig_t {
  size_t size;
  unsigned int magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare, trafficClass;
  const char* commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
};

struct ncclSimInfo_t {
  size_t size;
  unsigned int magic, version;
  float estimatedTime;
};

#define NCCL_API(ret, name, ...)                                                                             \
  extern "C" __attribute__((visibility("default"))) ret pnccl##name(__VA_ARGS__);                            \
  extern "C" __attribute__((visibility("default"), weak, alias("pnccl" #name))) ret nccl##name(__VA_ARGS__); \
  extern "C" ret pnccl##name(__VA_ARGS__)

// NCCL's nccl.h says cudaStream_t; it is the driver's CUstream.
extern "C" {
ncclResult_t pncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       CUstream stream);
ncclResult_t pncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream);
ncclResult_t pncclGetUniqueId(ncclUniqueId* id);
ncclResult_t pncclCommAbort(ncclComm_t comm);
}
