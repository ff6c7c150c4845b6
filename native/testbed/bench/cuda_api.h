// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that the bench uses, from libcuda.so.1 at run time, and CUDA graphs.
//
// Symbols are spelled out instead of taken from <cuda.h>'s macros: new headers map some names to entry points that
// older drivers lack. The old entry points do the same.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "bench/library.h"

namespace powerccl::bench {

struct CudaApi {
  Library library = open();
  decltype(::cuInit)* init = library.required("cuInit");
  decltype(::cuDriverGetVersion)* driver_get_version = library.required("cuDriverGetVersion");
  decltype(::cuGetErrorString)* get_error_string = library.required("cuGetErrorString");
  decltype(::cuDeviceGetCount)* device_get_count = library.required("cuDeviceGetCount");
  decltype(::cuDeviceGet)* device_get = library.required("cuDeviceGet");
  decltype(::cuDeviceGetName)* device_get_name = library.required("cuDeviceGetName");
  CUresult (*device_get_uuid)(CUuuid*, CUdevice) = library.required("cuDeviceGetUuid");
  decltype(::cuDeviceGetPCIBusId)* device_get_pci_bus_id = library.required("cuDeviceGetPCIBusId");
  decltype(::cuDeviceGetAttribute)* device_get_attribute = library.required("cuDeviceGetAttribute");
  decltype(::cuDevicePrimaryCtxRetain)* primary_context_retain = library.required("cuDevicePrimaryCtxRetain");
  decltype(::cuCtxSetCurrent)* context_set_current = library.required("cuCtxSetCurrent");
  CUresult (*mem_alloc)(CUdeviceptr*, size_t) = library.required("cuMemAlloc_v2");
  CUresult (*mem_free)(CUdeviceptr) = library.required("cuMemFree_v2");
  CUresult (*memcpy_to_device)(CUdeviceptr, const void*, size_t) = library.required("cuMemcpyHtoD_v2");
  CUresult (*memcpy_to_host)(void*, CUdeviceptr, size_t) = library.required("cuMemcpyDtoH_v2");
  CUresult (*memset_d8)(CUdeviceptr, unsigned char, size_t) = library.required("cuMemsetD8_v2");
  decltype(::cuStreamCreate)* stream_create = library.required("cuStreamCreate");
  CUresult (*stream_destroy)(CUstream) = library.required("cuStreamDestroy_v2");
  decltype(::cuStreamSynchronize)* stream_synchronize = library.required("cuStreamSynchronize");
  decltype(::cuStreamQuery)* stream_query = library.required("cuStreamQuery");
  decltype(::cuStreamWaitEvent)* stream_wait_event = library.required("cuStreamWaitEvent");
  decltype(::cuEventCreate)* event_create = library.required("cuEventCreate");
  CUresult (*event_destroy)(CUevent) = library.required("cuEventDestroy_v2");
  decltype(::cuEventRecord)* event_record = library.required("cuEventRecord");
  decltype(::cuEventSynchronize)* event_synchronize = library.required("cuEventSynchronize");
  CUresult (*event_elapsed_time)(float*, CUevent, CUevent) = library.required("cuEventElapsedTime");
  // For kernels and graphs alone; null where the driver lacks them.
  decltype(::cuModuleLoadData)* module_load_data = library.optional("cuModuleLoadData");
  decltype(::cuModuleGetFunction)* module_get_function = library.optional("cuModuleGetFunction");
  decltype(::cuLaunchKernel)* launch_kernel = library.optional("cuLaunchKernel");
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode) = library.optional("cuStreamBeginCapture_v2");
  decltype(::cuStreamEndCapture)* end_capture = library.optional("cuStreamEndCapture");
  CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long) = library.optional("cuGraphInstantiateWithFlags");
  decltype(::cuGraphLaunch)* graph_launch = library.optional("cuGraphLaunch");
  decltype(::cuGraphExecDestroy)* graph_exec_destroy = library.optional("cuGraphExecDestroy");
  decltype(::cuGraphDestroy)* graph_destroy = library.optional("cuGraphDestroy");
  // Of the emulator's libcuda alone (native/testbed/emulator/client/emulator_client.h); null on real GPUs.
  CUresult (*stop_time)(uint64_t patience_ns, uint64_t* stop) = library.optional("pwe_stop_time");
  CUresult (*start_time)(uint64_t stop) = library.optional("pwe_start_time");
  void (*submit_as_of)(uint64_t stamp_ns) = library.optional("pwe_submit_as_of");
  void (*set_moves_data)(int moves) = library.optional("pwe_set_moves_data");
  CUresult (*event_energy)(CUevent, double* energy_uj) = library.optional("pwe_event_energy");

  // Loads libcuda.so.1 and calls cuInit. Failure(kExitMissing) where there is no driver or no GPU.
  static const CudaApi& instance();
  bool emulated() const { return stop_time != nullptr; }
  // Throws Failure(kExitRankFailed) with the driver's own words.
  void check(CUresult result, const char* doing) const;

 private:
  static Library open();
};

// Number of CUDA devices, found out in a child process so that the caller may still fork ranks afterwards.
int count_devices();

// What was enqueued once, launched again and again.
class Graph {
 public:
  // Captures what `enqueue` puts into `stream`, and into streams that it makes wait for it.
  template <typename Enqueue>
  Graph(const CudaApi& cuda, CUstream stream, Enqueue enqueue) : cuda_(cuda) {
    if (!cuda.begin_capture || !cuda.end_capture || !cuda.instantiate || !cuda.graph_launch) {
      throw Failure(kExitMissing, "this driver has no CUDA graphs", "leave --graph, or the scenario's `capture`, out");
    }
    cuda.check(cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    enqueue();
    cuda.check(cuda.end_capture(stream, &graph_), "cuStreamEndCapture");
    cuda.check(cuda.instantiate(&executable_, graph_, 0), "cuGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cuda_.graph_exec_destroy(executable_);
    if (graph_ != nullptr) cuda_.graph_destroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(CUstream stream) { cuda_.check(cuda_.graph_launch(executable_, stream), "cuGraphLaunch"); }

 private:
  const CudaApi& cuda_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace powerccl::bench
