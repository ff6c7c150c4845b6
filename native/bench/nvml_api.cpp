// SPDX-License-Identifier: Apache-2.0
#include "bench/nvml_api.h"

#include <array>

#include "bench/library.h"

namespace powerccl::bench {

std::unique_ptr<NvmlApi> NvmlApi::load(std::string& reason) {
  try {
    const Library library = Library::open(std::array<std::string, 1>{"libnvidia-ml.so.1"}, "");
    auto api = std::make_unique<NvmlApi>();
    nvmlReturn_t (*init)() = nullptr;
    library.required(init, "nvmlInit_v2");
    library.required(api->error_string, "nvmlErrorString");
    library.required(api->device_get_count, "nvmlDeviceGetCount_v2");
    library.required(api->handle_by_uuid, "nvmlDeviceGetHandleByUUID");
    library.required(api->handle_by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    library.optional(api->device_get_index, "nvmlDeviceGetIndex");
    library.optional(api->total_energy, "nvmlDeviceGetTotalEnergyConsumption");
    library.optional(api->power_usage, "nvmlDeviceGetPowerUsage");
    library.optional(api->clock_info, "nvmlDeviceGetClockInfo");
    library.optional(api->temperature, "nvmlDeviceGetTemperature");
    if (!library.optional(api->throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons")) {
      library.optional(api->throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    }
    library.optional(api->set_locked_clocks, "nvmlDeviceSetGpuLockedClocks");
    library.optional(api->reset_locked_clocks, "nvmlDeviceResetGpuLockedClocks");
    library.optional(api->driver_version, "nvmlSystemGetDriverVersion");
    library.optional(api->nvlink_state, "nvmlDeviceGetNvLinkState");
    library.optional(api->emulated_platform, "powerccl_emulator_platform");
    void* marker = nullptr;
    api->emulated = library.optional(marker, "powerccl_emulator_version");
    if (const nvmlReturn_t result = init(); result != NVML_SUCCESS) {
      reason = std::string("nvmlInit: ") + api->error_string(result);
      return nullptr;
    }
    return api;
  } catch (const Failure& failure) {
    reason = failure.what();
    return nullptr;
  }
}

std::string NvmlApi::text(nvmlReturn_t result) const {
  return error_string(result);
}

nvmlDevice_t NvmlApi::find(const char* uuid, const char* pci) const {
  nvmlDevice_t device = nullptr;
  if (*uuid != '\0' && handle_by_uuid(uuid, &device) == NVML_SUCCESS) return device;
  if (*pci != '\0' && handle_by_pci(pci, &device) == NVML_SUCCESS) return device;
  return nullptr;
}

}  // namespace powerccl::bench
