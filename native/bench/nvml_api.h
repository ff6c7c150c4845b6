// SPDX-License-Identifier: Apache-2.0
// The part of NVML that the bench uses, from libnvidia-ml.so.1 at run time. Everything here may be missing: the bench
// measures times without it. Only the supervising process of rank 0 calls it (energy reads take milliseconds).
#ifndef POWERCCL_BENCH_NVML_API_H
#define POWERCCL_BENCH_NVML_API_H
#include <nvml.h>

#include <memory>
#include <string>

namespace powerccl::bench {

struct NvmlApi {
  decltype(::nvmlErrorString)* error_string;
  nvmlReturn_t (*device_get_count)(unsigned int*);
  nvmlReturn_t (*handle_by_uuid)(const char*, nvmlDevice_t*);
  nvmlReturn_t (*handle_by_pci)(const char*, nvmlDevice_t*);
  decltype(::nvmlDeviceGetIndex)* device_get_index;
  decltype(::nvmlDeviceGetTotalEnergyConsumption)* total_energy;
  decltype(::nvmlDeviceGetPowerUsage)* power_usage;
  decltype(::nvmlDeviceGetClockInfo)* clock_info;
  nvmlReturn_t (*temperature)(nvmlDevice_t, nvmlTemperatureSensors_t, unsigned int*);
  nvmlReturn_t (*throttle_reasons)(nvmlDevice_t, unsigned long long*);
  decltype(::nvmlDeviceSetGpuLockedClocks)* set_locked_clocks;
  decltype(::nvmlDeviceResetGpuLockedClocks)* reset_locked_clocks;
  decltype(::nvmlSystemGetDriverVersion)* driver_version;
  decltype(::nvmlDeviceGetNvLinkState)* nvlink_state;
  nvmlReturn_t (*emulated_platform)(char*, unsigned int);
  bool emulated;  // the library exports powerccl_emulator_version

  // Null when the library or the driver is missing; `reason` then says why. Call once per process, after forking.
  static std::unique_ptr<NvmlApi> load(std::string& reason);
  std::string text(nvmlReturn_t result) const;
  // By UUID, else by PCI address; null if NVML knows neither.
  nvmlDevice_t find(const char* uuid, const char* pci) const;
};

}  // namespace powerccl::bench
#endif
