// SPDX-License-Identifier: Apache-2.0
// The functions that the library stands before, over an old NCCL and a driver that do nothing. This program is linked
// with the library in front of them, which the loader treats as it does a preloaded one.
#pragma once
#include "child_test.h"

extern "C" {
struct Id {
  char bytes[128];
};
int ncclCommInitRank(void**, int, Id, int);
int ncclCommInitRankConfig(void**, int, Id, int, void*);
int ncclCommInitAll(void**, int, const int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommDestroy(void*);
int ncclCommShrink(void*, int*, int, void**, void*, int);
int ncclCommGrow(void*, int, const Id*, int, void**, void*);
int ncclCommSuspend(void*, int);
int ncclCommRevoke(void*, int);
int ncclPutSignal(const void*, size_t, int, int, void*, size_t, int, int, unsigned, void*, void*);
int ncclSignal(int, int, int, unsigned, void*, void*);
int ncclWaitSignal(int, void*, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclBcast(void*, size_t, int, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
int cuEventRecord(void*, void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuCtxDestroy_v2(void*);
int cudaDeviceReset();
int cuEventCreate(void**, unsigned);
void fake_set_result(int);
void fake_set_ready(void*);
int fake_calls();
int fake_depth();
void fake_set_wait(int, int);
void fake_set_record_us(int);
void fake_set_unready(bool);
void fake_set_capturing(const void*);
int fake_kernels();
int fake_events();
}

namespace powerccl::test {

constexpr int kFloat = 7;

class Preload : public ChildTest {
 protected:
  Preload() { setenv("POWERCCL_KERNEL_EVENTS", "all", 1); }
  static void* comm_of(int ranks = 4, int rank = 0) {
    void* comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, ranks, {"same on all ranks"}, rank), 0);
    return comm;
  }
  static int all_reduce(void* comm, void* stream, size_t count = 1 << 20) {
    return ncclAllReduce(nullptr, nullptr, count, kFloat, 0, comm, stream);
  }
  static void compute(void* stream, int kernels = 1) {
    for (int i = 0; i < kernels; ++i) cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }
  static void* new_event() {
    void* event = nullptr;
    cuEventCreate(&event, 0);
    return event;
  }

  int place[4] = {};  // streams by their addresses
  void* const computing = &place[0];
  void* const communicating = &place[1];
  void* const other = &place[2];
};

}  // namespace powerccl::test
