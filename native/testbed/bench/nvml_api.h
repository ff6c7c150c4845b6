// SPDX-License-Identifier: Apache-2.0
// The part of NVML that the bench uses, from libnvidia-ml.so.1 at run time. Everything here may be missing: the bench
// measures times without it. Only the supervising process of rank 0 calls it (energy reads take milliseconds).
#ifndef POWERCCL_BENCH_NVML_API_H
#define POWERCCL_BENCH_NVML_API_H
#include <nvml.h>

#include <memory>
#include <string>

#include "bench/library.h"

namespace powerccl::bench {

struct NvmlApi {
  Library library = Library::open({"libnvidia-ml.so.1"}, "");
  nvmlReturn_t (*init)() = library.required("nvmlInit_v2");
  decltype(::nvmlErrorString)* error_string = library.required("nvmlErrorString");
  nvmlReturn_t (*handle_by_uuid)(const char*, nvmlDevice_t*) = library.required("nvmlDeviceGetHandleByUUID");
  nvmlReturn_t (*handle_by_pci)(const char*, nvmlDevice_t*) = library.required("nvmlDeviceGetHandleByPciBusId_v2");
  decltype(::nvmlDeviceGetIndex)* device_get_index = library.optional("nvmlDeviceGetIndex");
  decltype(::nvmlDeviceGetTotalEnergyConsumption)* total_energy =
      library.optional("nvmlDeviceGetTotalEnergyConsumption");
  decltype(::nvmlDeviceGetPowerUsage)* power_usage = library.optional("nvmlDeviceGetPowerUsage");
  decltype(::nvmlDeviceGetClockInfo)* clock_info = library.optional("nvmlDeviceGetClockInfo");
  nvmlReturn_t (*temperature)(nvmlDevice_t, nvmlTemperatureSensors_t,
                              unsigned int*) = library.optional("nvmlDeviceGetTemperature");
  nvmlReturn_t (*throttle_reasons)(nvmlDevice_t,
                                   unsigned long long*) = library.either("nvmlDeviceGetCurrentClocksThrottleReasons",
                                                                         "nvmlDeviceGetCurrentClocksEventReasons");
  decltype(::nvmlDeviceSetGpuLockedClocks)* set_locked_clocks = library.optional("nvmlDeviceSetGpuLockedClocks");
  decltype(::nvmlDeviceResetGpuLockedClocks)* reset_locked_clocks = library.optional("nvmlDeviceResetGpuLockedClocks");
  decltype(::nvmlSystemGetDriverVersion)* driver_version = library.optional("nvmlSystemGetDriverVersion");
  decltype(::nvmlDeviceGetNvLinkState)* nvlink_state = library.optional("nvmlDeviceGetNvLinkState");
  nvmlReturn_t (*emulated_platform)(char*, unsigned int) = library.optional("powerccl_emulator_platform");
  bool emulated = library.optional("powerccl_emulator_version").address != nullptr;

  // Null when the library or the driver is missing; `reason` then says why. Call once per process, after forking.
  static std::unique_ptr<NvmlApi> load(std::string& reason);
  std::string text(nvmlReturn_t result) const { return error_string(result); }
  // By UUID, else by PCI address; null if NVML knows neither.
  nvmlDevice_t find(const char* uuid, const char* pci) const;
};

}  // namespace powerccl::bench
#endif
