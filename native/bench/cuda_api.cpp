// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda_api.h"

#include <array>
#include <string>

#include "bench/in_child.h"
#include "bench/library.h"

namespace powerccl::bench {
namespace {

const char* const kNoGpuHint =
    "run on a machine with an NVIDIA GPU, or on an emulated one: powerccl run --emulate t4x8 -- powerccl-bench ...";

CudaApi load() {
  const Library library = Library::open(std::array<std::string, 1>{"libcuda.so.1"}, kNoGpuHint);
  CudaApi api{};
  library.required(api.init, "cuInit");
  library.required(api.driver_get_version, "cuDriverGetVersion");
  library.required(api.get_error_string, "cuGetErrorString");
  library.required(api.device_get_count, "cuDeviceGetCount");
  library.required(api.device_get, "cuDeviceGet");
  library.required(api.device_get_name, "cuDeviceGetName");
  library.required(api.device_get_uuid, "cuDeviceGetUuid");
  library.required(api.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
  library.required(api.device_get_attribute, "cuDeviceGetAttribute");
  library.required(api.primary_context_retain, "cuDevicePrimaryCtxRetain");
  library.required(api.context_set_current, "cuCtxSetCurrent");
  library.required(api.mem_alloc, "cuMemAlloc_v2");
  library.required(api.mem_free, "cuMemFree_v2");
  library.required(api.memcpy_to_device, "cuMemcpyHtoD_v2");
  library.required(api.memcpy_to_host, "cuMemcpyDtoH_v2");
  library.required(api.memset_d8, "cuMemsetD8_v2");
  library.required(api.stream_create, "cuStreamCreate");
  library.required(api.stream_destroy, "cuStreamDestroy_v2");
  library.required(api.stream_synchronize, "cuStreamSynchronize");
  library.required(api.stream_query, "cuStreamQuery");
  library.required(api.stream_wait_event, "cuStreamWaitEvent");
  library.required(api.event_create, "cuEventCreate");
  library.required(api.event_destroy, "cuEventDestroy_v2");
  library.required(api.event_record, "cuEventRecord");
  library.required(api.event_synchronize, "cuEventSynchronize");
  library.required(api.event_elapsed_time, "cuEventElapsedTime");
  library.optional(api.module_load_data, "cuModuleLoadData");
  library.optional(api.module_get_function, "cuModuleGetFunction");
  library.optional(api.launch_kernel, "cuLaunchKernel");
  library.optional(api.stream_begin_capture, "cuStreamBeginCapture_v2");
  library.optional(api.stream_end_capture, "cuStreamEndCapture");
  library.optional(api.graph_instantiate_with_flags, "cuGraphInstantiateWithFlags");
  library.optional(api.graph_launch, "cuGraphLaunch");
  library.optional(api.graph_exec_destroy, "cuGraphExecDestroy");
  library.optional(api.graph_destroy, "cuGraphDestroy");
  library.optional(api.stop_time, "pwe_stop_time");
  library.optional(api.stop_time_behind, "pwe_stop_time_behind");
  library.optional(api.event_time, "pwe_event_time");
  library.optional(api.start_time, "pwe_start_time");
  library.optional(api.submit_as_of, "pwe_submit_as_of");
  library.optional(api.set_moves_data, "pwe_set_moves_data");
  library.optional(api.event_energy, "pwe_event_energy");
  const CUresult result = api.init(0);
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    api.get_error_string(result, &text);
    throw Failure(kExitMissing, std::string("cuInit: ") + (text != nullptr ? text : "unknown error"), kNoGpuHint);
  }
  return api;
}

}  // namespace

const CudaApi& CudaApi::instance() {
  static const CudaApi api = load();
  return api;
}

void CudaApi::check(CUresult result, const char* doing) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  get_error_string(result, &text);
  throw Failure(kExitRankFailed, std::string(doing) + ": " + (text != nullptr ? text : "CUDA error") + " (" +
                                     std::to_string(static_cast<int>(result)) + ")");
}

int count_devices() {
  return in_child(
      [] {
        int count = 0;
        const CudaApi& cuda = CudaApi::instance();
        try {
          cuda.check(cuda.device_get_count(&count), "cuDeviceGetCount");
        } catch (const Failure& failure) {
          throw Failure(kExitMissing, failure.what());  // no rank has failed yet
        }
        return count;
      },
      "the process that counts the GPUs died", "try nvidia-smi");
}

}  // namespace powerccl::bench
