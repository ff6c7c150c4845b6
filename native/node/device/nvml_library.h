// SPDX-License-Identifier: Apache-2.0
// NVML as this project uses it: the functions, looked up once. Only native/node/device includes this.
#pragma once
#include <nvml.h>

#include "device/error.h"

namespace powerccl::device {

// A member is null where the loaded NVML lacks the function.
struct NvmlFunctions {
  nvmlReturn_t (*init)();
  nvmlReturn_t (*shutdown)();
  nvmlReturn_t (*driver_version)(char*, unsigned);
  nvmlReturn_t (*nvml_version)(char*, unsigned);
  nvmlReturn_t (*count)(unsigned*);
  nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t*);
  nvmlReturn_t (*by_uuid)(const char*, nvmlDevice_t*);
  nvmlReturn_t (*by_pci)(const char*, nvmlDevice_t*);
  nvmlReturn_t (*index)(nvmlDevice_t, unsigned*);
  nvmlReturn_t (*uuid)(nvmlDevice_t, char*, unsigned);
  nvmlReturn_t (*name)(nvmlDevice_t, char*, unsigned);
  nvmlReturn_t (*pci_info)(nvmlDevice_t, nvmlPciInfo_t*);
  nvmlReturn_t (*minor_number)(nvmlDevice_t, unsigned*);
  nvmlReturn_t (*mig_mode)(nvmlDevice_t, unsigned*, unsigned*);
  nvmlReturn_t (*memory_clocks)(nvmlDevice_t, unsigned*, unsigned*);
  nvmlReturn_t (*graphics_clocks)(nvmlDevice_t, unsigned, unsigned*, unsigned*);
  nvmlReturn_t (*architecture)(nvmlDevice_t, unsigned*);
  nvmlReturn_t (*lock_clocks)(nvmlDevice_t, unsigned, unsigned);
  nvmlReturn_t (*reset_clocks)(nvmlDevice_t);
  nvmlReturn_t (*clock)(nvmlDevice_t, nvmlClockType_t, unsigned*);
  nvmlReturn_t (*max_clock)(nvmlDevice_t, nvmlClockType_t, unsigned*);
  nvmlReturn_t (*throttle_reasons)(nvmlDevice_t, unsigned long long*);
  nvmlReturn_t (*power)(nvmlDevice_t, unsigned*);
  nvmlReturn_t (*power_limit)(nvmlDevice_t, unsigned*);
  nvmlReturn_t (*power_limit_range)(nvmlDevice_t, unsigned*, unsigned*);
  nvmlReturn_t (*fields)(nvmlDevice_t, int, nvmlFieldValue_t*);
  nvmlReturn_t (*energy)(nvmlDevice_t, unsigned long long*);
  nvmlReturn_t (*temperature)(nvmlDevice_t, nvmlTemperatureSensors_t, unsigned*);
  nvmlReturn_t (*utilization)(nvmlDevice_t, nvmlUtilization_t*);
  nvmlReturn_t (*nvlink_state)(nvmlDevice_t, unsigned, nvmlEnableState_t*);
  nvmlReturn_t (*emulated_platform)(char*, unsigned);  // the emulator's own
  const char* emulator_version;                        // null: a real NVML
};

// Loads NVML (POWERCCL_NVML_LIBRARY, else libnvidia-ml.so.1) and calls nvmlInit. Every success is undone by one
// nvml_release. Null with `error` filled where there is no NVML, no driver or no right to use it.
const NvmlFunctions* nvml_acquire(Error* error);
void nvml_release(const NvmlFunctions* nvml);

// kOk for NVML_SUCCESS; else fills `error` with "<what>: <NVML's reason>" and returns NVML's code.
int nvml_check(nvmlReturn_t result, const char* what, Error* error);
// The same for a function that this NVML lacks.
int nvml_lacks(const char* function, Error* error);

}  // namespace powerccl::device
