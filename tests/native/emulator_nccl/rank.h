// SPDX-License-Identifier: Apache-2.0
// A rank of a test job: its place, its device, and checks that end the process with a message.
#pragma once
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "emulator/nccl/nccl_abi.h"

// The functions of libnccl.so.2 that the tests call, as a user's nccl.h declares them.
extern "C" {
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
                                      ncclConfig_t* config);
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* child, ncclConfig_t* config,
                            int flags);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t code);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes);
ncclResult_t ncclMemFree(void* pointer);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* window, int flags);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream);
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int root, ncclComm_t, CUstream);
ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int root, ncclComm_t, CUstream);
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t, CUstream);
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, CUstream);
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream);
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, ncclComm_t, CUstream);
ncclResult_t ncclGather(const void*, void*, size_t, ncclDataType_t, int root, ncclComm_t, CUstream);
ncclResult_t ncclScatter(const void*, void*, size_t, ncclDataType_t, int root, ncclComm_t, CUstream);
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int peer, ncclComm_t, CUstream);
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int peer, ncclComm_t, CUstream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info);
}

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, test_rank(), #condition); \
      _Exit(1);                                                                             \
    }                                                                                       \
  } while (0)
#define CHECK_IS(value, expected)                                                                                 \
  do {                                                                                                            \
    const long long got_ = static_cast<long long>(value), expected_ = static_cast<long long>(expected);           \
    if (got_ != expected_) {                                                                                      \
      fprintf(stderr, "%s:%d: rank %d: %s is %lld, not %lld (last error: %s)\n", __FILE__, __LINE__, test_rank(), \
              #value, got_, expected_, ncclGetLastError(nullptr));                                                \
      _Exit(1);                                                                                                   \
    }                                                                                                             \
  } while (0)
#define NCCL(call) CHECK_IS(call, ncclSuccess)
#define CUDA(call) CHECK_IS(call, CUDA_SUCCESS)

int test_rank();

// Signs between the ranks of a job that NCCL knows nothing of: files beside the job's logs.
void give_sign(const char* name);
void await_sign(const char* name, int from_rank);

struct Rank {
  int rank, ranks;
  ncclUniqueId id;
};

// Device `ordinal` current in this thread, and a stream on it.
inline CUstream take_device(int ordinal) {
  CUDA(cuInit(0));
  CUdevice device = 0;
  CUDA(cuDeviceGet(&device, ordinal));
  CUcontext context = nullptr;
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxSetCurrent(context));
  CUstream stream = nullptr;
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

inline ncclComm_t init(const Rank& job) {
  ncclComm_t comm = nullptr;
  NCCL(ncclCommInitRank(&comm, job.ranks, job.id, job.rank));
  return comm;
}

struct Joined {
  CUstream stream;
  ncclComm_t comm;
};
// The job's communicator, each rank on the device of its number.
inline Joined join(const Rank& job) {
  const CUstream stream = take_device(job.rank);
  return {stream, init(job)};
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) { CUDA(cuMemAlloc(&pointer_, count * sizeof(T))); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { set(values); }
  ~Buffer() { cuMemFree(pointer_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void set(const std::vector<T>& values) { CUDA(cuMemcpyHtoD(pointer_, values.data(), values.size() * sizeof(T))); }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    CUDA(cuMemcpyDtoH(values.data(), pointer_, count_ * sizeof(T)));
    return values;
  }
  T* at(size_t index = 0) const { return reinterpret_cast<T*>(pointer_) + index; }

 private:
  CUdeviceptr pointer_ = 0;
  size_t count_;
};

using Scenario = void (*)(const Rank&);
std::map<std::string, Scenario>& scenarios();
struct Register {
  Register(const char* name, Scenario scenario) { scenarios()[name] = scenario; }
};
#define SCENARIO(name)                                \
  static void name(const Rank& job);                  \
  static const Register register_##name(#name, name); \
  static void name([[maybe_unused]] const Rank& job)
