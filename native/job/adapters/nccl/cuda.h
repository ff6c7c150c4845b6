// SPDX-License-Identifier: Apache-2.0
// The few functions of the CUDA driver that the adapter needs, found in the libcuda that the job has loaded.
#pragma once
#include "runtime/runtime.h"

namespace powerccl::nccl {

struct Cuda {
  int (*ctx_get_device)(int* device) = nullptr;
  int (*device_get_uuid)(unsigned char (*uuid)[16], int device) = nullptr;
  int (*device_get_whole_uuid)(unsigned char (*uuid)[16], int device) = nullptr;  // of a MIG slice its GPU's
  int (*device_get_pci_bus_id)(char* text, int size, int device) = nullptr;
  int (*device_get_name)(char* text, int size, int device) = nullptr;
  int (*launch_host_func)(void* stream, void (*function)(void*), void* data) = nullptr;
  // For marks in streams.
  int (*ctx_get_current)(void** context) = nullptr;
  int (*ctx_push_current)(void* context) = nullptr;
  int (*ctx_pop_current)(void** context) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;  // may be missing
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_get_ctx)(void* stream, void** context) = nullptr;
  int (*stream_is_capturing)(void* stream, int* status) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*event_elapsed_ms)(float* milliseconds, void* start, void* end) = nullptr;
  // For words that streams write.
  int (*mem_host_register)(void* memory, size_t bytes, unsigned flags) = nullptr;
  int (*mem_host_get_device_pointer)(uint64_t* device, void* memory, unsigned flags) = nullptr;
  int (*stream_write_value32)(void* stream, uint64_t address, uint32_t value, unsigned flags) = nullptr;

  bool can_write() const {
    return mem_host_register != nullptr && mem_host_get_device_pointer != nullptr && stream_write_value32 != nullptr;
  }
  bool can_mark() const {
    return ctx_get_current != nullptr && ctx_push_current != nullptr && ctx_pop_current != nullptr &&
           stream_create != nullptr && stream_get_ctx != nullptr && stream_is_capturing != nullptr &&
           event_create != nullptr && event_record != nullptr && event_query != nullptr && event_elapsed_ms != nullptr;
  }
};

constexpr int kCudaNotReady = 600;

// Looks the functions up; what is missing stays null. Nothing is loaded that the job has not loaded.
Cuda find_cuda();

// The GPU of the calling thread's current context; unknown parts stay empty.
GpuIdentity current_gpu(const Cuda& cuda);
// The GPU that the driver numbers so.
GpuIdentity gpu_of_device(const Cuda& cuda, int device);

// "nccl 2.28.9 profiler v5"; without NCCL's version if it cannot be found.
void library_text(char* text, size_t size, const char* how);

// Reads a GPU's clock through NVML. Nothing in a job's process sets one: powerccld does.
// Adapter::open_reader.
ClockClient* open_nvml_reader(void* context, const GpuIdentity& gpu);

}  // namespace powerccl::nccl
