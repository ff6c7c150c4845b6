// SPDX-License-Identifier: Apache-2.0
#include "device/nvml_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

namespace powerccl::device {
namespace {

pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
void* library;
NvmlFunctions functions;

template <typename Function>
void look_up(Function& function, const char* name, const char* older_name = nullptr) {
  void* symbol = dlsym(library, name);
  if (!symbol && older_name) symbol = dlsym(library, older_name);
  function = reinterpret_cast<Function>(symbol);
}

void look_up_all() {
  look_up(functions.init, "nvmlInit_v2");
  look_up(functions.shutdown, "nvmlShutdown");
  look_up(functions.driver_version, "nvmlSystemGetDriverVersion");
  look_up(functions.nvml_version, "nvmlSystemGetNVMLVersion");
  look_up(functions.count, "nvmlDeviceGetCount_v2");
  look_up(functions.by_index, "nvmlDeviceGetHandleByIndex_v2");
  look_up(functions.by_uuid, "nvmlDeviceGetHandleByUUID");
  look_up(functions.by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
  look_up(functions.index, "nvmlDeviceGetIndex");
  look_up(functions.uuid, "nvmlDeviceGetUUID");
  look_up(functions.name, "nvmlDeviceGetName");
  look_up(functions.pci_info, "nvmlDeviceGetPciInfo_v3");
  look_up(functions.minor_number, "nvmlDeviceGetMinorNumber");
  look_up(functions.mig_mode, "nvmlDeviceGetMigMode");
  look_up(functions.memory_clocks, "nvmlDeviceGetSupportedMemoryClocks");
  look_up(functions.graphics_clocks, "nvmlDeviceGetSupportedGraphicsClocks");
  look_up(functions.architecture, "nvmlDeviceGetArchitecture");
  look_up(functions.lock_clocks, "nvmlDeviceSetGpuLockedClocks");
  look_up(functions.reset_clocks, "nvmlDeviceResetGpuLockedClocks");
  look_up(functions.clock, "nvmlDeviceGetClockInfo");
  look_up(functions.max_clock, "nvmlDeviceGetMaxClockInfo");
  look_up(functions.throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons",
          "nvmlDeviceGetCurrentClocksThrottleReasons");
  look_up(functions.power, "nvmlDeviceGetPowerUsage");
  look_up(functions.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  look_up(functions.power_limit_range, "nvmlDeviceGetPowerManagementLimitConstraints");
  look_up(functions.fields, "nvmlDeviceGetFieldValues");
  look_up(functions.energy, "nvmlDeviceGetTotalEnergyConsumption");
  look_up(functions.temperature, "nvmlDeviceGetTemperature");
  look_up(functions.utilization, "nvmlDeviceGetUtilizationRates");
  look_up(functions.nvlink_state, "nvmlDeviceGetNvLinkState");
  look_up(functions.emulated_platform, "powerccl_emulator_platform");

  // Function or string: either way the address says that this is the emulator.
  functions.emulator_version = static_cast<const char*>(dlsym(library, "powerccl_emulator_version"));
}

int load(Error* error) {
  if (library) return kOk;
  const char* path = getenv("POWERCCL_NVML_LIBRARY");
  if (!path || !*path) path = "libnvidia-ml.so.1";
  // Naming the library is what the variable is for; who may set it may set LD_LIBRARY_PATH too.
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // NOLINT(clang-analyzer-optin.taint.GenericTaint)
  if (!library) {
    const char* reason = dlerror();
    return fail(error, kLibraryMissing, "cannot load NVML: %s", reason ? reason : path);
  }
  look_up_all();
  if (functions.init && functions.shutdown) return kOk;
  dlclose(library);
  library = nullptr;
  return fail(error, kLibraryMissing, "%s is not an NVML library: it has no nvmlInit_v2", path);
}

const char* reason_of(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_UNINITIALIZED:
      return "NVML is not initialised";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "not supported by this GPU";
    case NVML_ERROR_NO_PERMISSION:
      return "no permission";
    case NVML_ERROR_NOT_FOUND:
      return "not found";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "the NVIDIA driver is not loaded";
    case NVML_ERROR_TIMEOUT:
      return "timed out";
    case NVML_ERROR_GPU_IS_LOST:
      return "the GPU has fallen off the bus";
    case NVML_ERROR_RESET_REQUIRED:
      return "the GPU needs a reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "driver and library versions differ";
    case NVML_ERROR_IN_USE:
      return "the GPU is in use";
    case NVML_ERROR_GPU_NOT_FOUND:
      return "no GPU found";
    case NVML_ERROR_UNKNOWN:
      return "unknown driver error";
    default:
      return "NVML error";
  }
}

}  // namespace

const NvmlFunctions* nvml_acquire(Error* error) {
  pthread_mutex_lock(&load_mutex);
  int code = load(error);
  pthread_mutex_unlock(&load_mutex);
  if (code != kOk || nvml_check(functions.init(), "nvmlInit", error) != kOk) return nullptr;
  return &functions;
}

void nvml_release(const NvmlFunctions* nvml) {
  if (nvml) nvml->shutdown();
}

int nvml_check(nvmlReturn_t result, const char* what, Error* error) {
  if (result == NVML_SUCCESS) return kOk;
  return fail(error, static_cast<int>(result), "%s: %s (NVML %d)", what, reason_of(result), static_cast<int>(result));
}

int nvml_lacks(const char* function, Error* error) {
  return fail(error, kSymbolMissing, "this NVML has no %s", function);
}

}  // namespace powerccl::device
