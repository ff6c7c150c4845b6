// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that the bench uses, from libcuda.so.1 at run time.
//
// Symbols are spelled out instead of taken from cuda.h's macros: a new header maps some names to entry points that
// drivers of a year ago do not have, although the old ones do the same.
#ifndef POWERCCL_BENCH_CUDA_API_H
#define POWERCCL_BENCH_CUDA_API_H
#include <cuda.h>

#include <cstdint>
#include <string>

namespace powerccl::bench {

struct CudaApi {
  decltype(::cuInit)* init;
  decltype(::cuDriverGetVersion)* driver_get_version;
  decltype(::cuGetErrorString)* get_error_string;
  decltype(::cuDeviceGetCount)* device_get_count;
  decltype(::cuDeviceGet)* device_get;
  decltype(::cuDeviceGetName)* device_get_name;
  CUresult (*device_get_uuid)(CUuuid*, CUdevice);
  decltype(::cuDeviceGetPCIBusId)* device_get_pci_bus_id;
  decltype(::cuDeviceGetAttribute)* device_get_attribute;
  decltype(::cuDevicePrimaryCtxRetain)* primary_context_retain;
  decltype(::cuCtxSetCurrent)* context_set_current;
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*memcpy_to_device)(CUdeviceptr, const void*, size_t);
  CUresult (*memcpy_to_host)(void*, CUdeviceptr, size_t);
  CUresult (*memset_d8)(CUdeviceptr, unsigned char, size_t);
  decltype(::cuStreamCreate)* stream_create;
  CUresult (*stream_destroy)(CUstream);
  decltype(::cuStreamSynchronize)* stream_synchronize;
  decltype(::cuStreamQuery)* stream_query;
  decltype(::cuStreamWaitEvent)* stream_wait_event;
  decltype(::cuEventCreate)* event_create;
  CUresult (*event_destroy)(CUevent);
  decltype(::cuEventRecord)* event_record;
  decltype(::cuEventSynchronize)* event_synchronize;
  CUresult (*event_elapsed_time)(float*, CUevent, CUevent);
  // Used by `train` and `--graph` alone; null where the driver lacks them.
  decltype(::cuModuleLoadData)* module_load_data;
  decltype(::cuModuleGetFunction)* module_get_function;
  decltype(::cuLaunchKernel)* launch_kernel;
  CUresult (*stream_begin_capture)(CUstream, CUstreamCaptureMode);
  decltype(::cuStreamEndCapture)* stream_end_capture;
  CUresult (*graph_instantiate_with_flags)(CUgraphExec*, CUgraph, unsigned long long);
  decltype(::cuGraphLaunch)* graph_launch;
  decltype(::cuGraphExecDestroy)* graph_exec_destroy;
  decltype(::cuGraphDestroy)* graph_destroy;
  // Of the emulator's libcuda alone (native/emulator/client/emulator_client.h); null on real GPUs.
  CUresult (*stop_time)(uint64_t patience_ns, uint64_t* stop);
  CUresult (*stop_time_behind)(CUstream, uint64_t patience_ns, uint64_t* stop);
  CUresult (*start_time)(uint64_t stop);
  void (*submit_as_of)(uint64_t stamp_ns);
  void (*set_moves_data)(int moves);
  CUresult (*event_time)(CUevent, uint64_t* time_ns);
  CUresult (*event_energy)(CUevent, double* energy_uj);

  // Loads libcuda.so.1 and calls cuInit. Failure(kExitMissing) where there is no driver or no GPU.
  static const CudaApi& instance();
  // Throws Failure(kExitRankFailed) with the driver's own words.
  void check(CUresult result, const char* doing) const;
};

// Number of CUDA devices, found out in a child process so that the caller may still fork ranks afterwards.
int count_devices();

}  // namespace powerccl::bench
#endif
