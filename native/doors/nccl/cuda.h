// SPDX-License-Identifier: Apache-2.0
// The few functions of the CUDA driver that the door needs, found in the libcuda that the job has loaded.
#ifndef POWERCCL_DOORS_NCCL_CUDA_H
#define POWERCCL_DOORS_NCCL_CUDA_H
#include "runtime/runtime.h"

namespace powerccl::nccl {

struct Cuda {
  int (*ctx_get_device)(int* device) = nullptr;
  int (*device_get_uuid)(unsigned char (*uuid)[16], int device) = nullptr;
  int (*device_get_pci_bus_id)(char* text, int size, int device) = nullptr;
  int (*device_get_name)(char* text, int size, int device) = nullptr;
  int (*launch_host_func)(void* stream, void (*function)(void*), void* data) = nullptr;
};

// Looks the functions up; what is missing stays null. Nothing is loaded that the job has not loaded.
Cuda find_cuda();

// The GPU of the calling thread's current context; unknown parts stay empty.
GpuIdentity current_gpu(const Cuda& cuda);

// "nccl 2.28.9 profiler v5"; without NCCL's version if it cannot be found.
void library_text(char* text, size_t size, int profiler_version);

}  // namespace powerccl::nccl
#endif
