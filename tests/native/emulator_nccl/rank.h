// SPDX-License-Identifier: Apache-2.0
// A rank of a test job: its place, its device, and checks that end the process with a message.
#pragma once
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "nccl_calls.h"

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
  int rank;
  int ranks;
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
struct NamedScenario {
  const char* name;
  Scenario run;
};
std::vector<NamedScenario> data_scenarios();
std::vector<NamedScenario> life_scenarios();
std::vector<NamedScenario> call_scenarios();
std::vector<NamedScenario> tuned_scenarios();
