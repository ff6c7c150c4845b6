// SPDX-License-Identifier: Apache-2.0
// The emulated libcuda of this process, found at run time as NCCL finds its driver.
#pragma once
#include <cuda.h>

#include "emulator/client/emulator_client.h"
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

struct Driver {
  decltype(&::cuInit) cuInit;
  decltype(&::cuDeviceGet) cuDeviceGet;
  decltype(&::cuDeviceGetCount) cuDeviceGetCount;
  decltype(&::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain;
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent;
  decltype(&::cuCtxSetCurrent) cuCtxSetCurrent;
  decltype(&::cuCtxSynchronize) cuCtxSynchronize;
  decltype(&::cuEventCreate) cuEventCreate;
  decltype(&::cuEventRecord) cuEventRecord;
  decltype(&::cuEventDestroy) cuEventDestroy;
  decltype(&::cuStreamWaitEvent) cuStreamWaitEvent;
  decltype(&::cuMemAlloc) cuMemAlloc;
  decltype(&::cuMemFree) cuMemFree;

  decltype(&::pwe_abi) pwe_abi;
  decltype(&::pwe_current_gpu) pwe_current_gpu;
  decltype(&::pwe_current_device) pwe_current_device;
  decltype(&::pwe_request) pwe_request;
  decltype(&::pwe_post) pwe_post;
  decltype(&::pwe_submit) pwe_submit;
  decltype(&::pwe_call_beside) pwe_call_beside;
  decltype(&::pwe_is_capturing) pwe_is_capturing;
  decltype(&::pwe_moves_data) pwe_moves_data;
  decltype(&::pwe_op_wait) pwe_op_wait;
  decltype(&::pwe_op_release) pwe_op_release;
  decltype(&::pwe_resolve) pwe_resolve;
};

// Null when libcuda.so.1 is not the emulator's; ncclGetLastError then says so.
const Driver* driver();

// Makes a context current for a scope.
class CurrentContext {
 public:
  CurrentContext(const Driver& loaded, CUcontext context) : driver_(loaded) {
    driver_.cuCtxGetCurrent(&before_);
    if (before_ != context) driver_.cuCtxSetCurrent(context);
  }
  ~CurrentContext() { driver_.cuCtxSetCurrent(before_); }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
  CUcontext before_ = nullptr;
};

}  // namespace powerccl::emulated_nccl
