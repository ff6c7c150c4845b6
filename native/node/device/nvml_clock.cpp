// SPDX-License-Identifier: Apache-2.0
#include "device/nvml_clock.h"

#include <stdio.h>
#include <string.h>

#include "device/nvml_library.h"
#include "device/process.h"

namespace powerccl::device {
namespace {

nvmlDevice_t handle_of(const ClockDevice* device) {
  return static_cast<nvmlDevice_t>(device->handle);
}

int not_open(Error* error) {
  return fail(error, kBadArgument, "the GPU is not open");
}

int find(const NvmlFunctions* nvml, const char* name, nvmlDevice_t* handle, Error* error) {
  if (strncmp(name, "MIG-", 4) == 0)
    return fail(error, kBadArgument, "%s is a MIG slice, which has no clock of its own", name);
  char what[112];
  snprintf(what, sizeof what, "GPU %s", name);
  if (strncmp(name, "GPU-", 4) == 0) {
    if (!nvml->by_uuid) return nvml_lacks("nvmlDeviceGetHandleByUUID", error);
    return nvml_check(nvml->by_uuid(name, handle), what, error);
  }
  if (!nvml->by_pci) return nvml_lacks("nvmlDeviceGetHandleByPciBusId_v2", error);
  return nvml_check(nvml->by_pci(name, handle), what, error);
}

}  // namespace

int clock_open(ClockDevice* device, const char* uuid_or_pci, Error* error) {
  *device = ClockDevice{};
  if (!uuid_or_pci || !*uuid_or_pci) return fail(error, kBadArgument, "no GPU named");
  const NvmlFunctions* nvml = nvml_acquire(error);
  if (!nvml) return error ? error->code : static_cast<int>(kLibraryMissing);
  nvmlDevice_t handle = nullptr;
  int code = find(nvml, uuid_or_pci, &handle, error);
  if (code != kOk) {
    nvml_release(nvml);
    return code;
  }
  device->nvml = nvml;
  device->handle = handle;
  // What names the GPU is for messages and the state file: a failure here must not keep a clock from being reset.
  unsigned index = 0;
  if (nvml->index && nvml->index(handle, &index) == NVML_SUCCESS) device->index = index;
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  if (nvml->uuid && nvml->uuid(handle, text, sizeof text) == NVML_SUCCESS)
    snprintf(device->uuid, sizeof device->uuid, "%.47s", text);
  else if (strncmp(uuid_or_pci, "GPU-", 4) == 0)
    snprintf(device->uuid, sizeof device->uuid, "%.47s", uuid_or_pci);
  nvmlPciInfo_t pci = {};
  if (nvml->pci_info && nvml->pci_info(handle, &pci) == NVML_SUCCESS)
    snprintf(device->pci, sizeof device->pci, "%.19s", pci.busId);
  if (!nvml->name || nvml->name(handle, device->name, sizeof device->name) != NVML_SUCCESS) device->name[0] = '\0';
  return kOk;
}

void clock_close(ClockDevice* device) {
  nvml_release(device->nvml);
  *device = ClockDevice{};
}

int clock_lock(ClockDevice* device, uint32_t min_mhz, uint32_t max_mhz, Error* error) {
  if (!device->nvml) return not_open(error);
  if (min_mhz == 0 || min_mhz > max_mhz)
    return fail(error, kBadArgument, "impossible clock range %u to %u MHz", min_mhz, max_mhz);
  if (!device->nvml->lock_clocks) return nvml_lacks("nvmlDeviceSetGpuLockedClocks", error);
  return nvml_check(device->nvml->lock_clocks(handle_of(device), min_mhz, max_mhz), "locking the clock", error);
}

bool clock_refused(int code) {
  switch (code) {
    case kSymbolMissing:
    case kBadArgument:
    case NVML_ERROR_UNINITIALIZED:
    case NVML_ERROR_INVALID_ARGUMENT:
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_NO_PERMISSION:
      return true;
    default:
      return false;
  }
}

int clock_reset(ClockDevice* device, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->reset_clocks) return nvml_lacks("nvmlDeviceResetGpuLockedClocks", error);
  return nvml_check(device->nvml->reset_clocks(handle_of(device)), "resetting the clock", error);
}

int clock_read_sm_mhz(ClockDevice* device, uint32_t* sm_mhz, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->clock) return nvml_lacks("nvmlDeviceGetClockInfo", error);
  return nvml_check(device->nvml->clock(handle_of(device), NVML_CLOCK_SM, sm_mhz), "reading the SM clock", error);
}

int clock_max_sm_mhz(ClockDevice* device, uint32_t* max_mhz, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->max_clock) return nvml_lacks("nvmlDeviceGetMaxClockInfo", error);
  return nvml_check(device->nvml->max_clock(handle_of(device), NVML_CLOCK_SM, max_mhz), "reading the highest SM clock",
                    error);
}

int clock_min_sm_mhz(ClockDevice* device, uint32_t* min_mhz, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->memory_clocks || !device->nvml->graphics_clocks)
    return nvml_lacks("nvmlDeviceGetSupportedGraphicsClocks", error);
  unsigned memory[64], graphics[1024];
  unsigned count = sizeof memory / sizeof *memory;
  int code =
      nvml_check(device->nvml->memory_clocks(handle_of(device), &count, memory), "reading the memory clocks", error);
  if (code != kOk) return code;
  unsigned highest = 0;
  for (unsigned i = 0; i < count; ++i)
    if (memory[i] > highest) highest = memory[i];
  count = sizeof graphics / sizeof *graphics;
  code = nvml_check(device->nvml->graphics_clocks(handle_of(device), highest, &count, graphics),
                    "reading the SM clocks", error);
  if (code != kOk) return code;
  if (count == 0) return fail(error, NVML_ERROR_NOT_SUPPORTED, "GPU %u lists no SM clocks", device->index);
  *min_mhz = graphics[0];
  for (unsigned i = 1; i < count; ++i)
    if (graphics[i] < *min_mhz) *min_mhz = graphics[i];
  return kOk;
}

int clock_minor_number(ClockDevice* device, uint32_t* minor, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->minor_number) return nvml_lacks("nvmlDeviceGetMinorNumber", error);
  return nvml_check(device->nvml->minor_number(handle_of(device), minor), "reading the minor number", error);
}

bool clock_mig_enabled(ClockDevice* device) {
  unsigned current = NVML_DEVICE_MIG_DISABLE, pending = NVML_DEVICE_MIG_DISABLE;
  return device->nvml && device->nvml->mig_mode &&
         device->nvml->mig_mode(handle_of(device), &current, &pending) == NVML_SUCCESS &&
         current != NVML_DEVICE_MIG_DISABLE;
}

int clock_throttle_reasons(ClockDevice* device, uint64_t* reasons, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->throttle_reasons) return nvml_lacks("nvmlDeviceGetCurrentClocksEventReasons", error);
  unsigned long long bits = 0;
  int code =
      nvml_check(device->nvml->throttle_reasons(handle_of(device), &bits), "reading the throttle reasons", error);
  if (code == kOk) *reasons = bits;
  return code;
}

int clock_power_limit(ClockDevice* device, uint32_t* limit_mw, Error* error) {
  if (!device->nvml) return not_open(error);
  if (!device->nvml->power_limit) return nvml_lacks("nvmlDeviceGetEnforcedPowerLimit", error);
  return nvml_check(device->nvml->power_limit(handle_of(device), limit_mw), "reading the power limit", error);
}

bool clock_emulated(const ClockDevice* device) {
  return device->nvml && device->nvml->emulator_version;
}

bool clock_may_lock(const ClockDevice* device, Error* error) {
  if (!device->nvml) {
    not_open(error);
    return false;
  }
  if (!device->nvml->lock_clocks || !device->nvml->reset_clocks) {
    nvml_lacks("nvmlDeviceSetGpuLockedClocks", error);
    return false;
  }
  unsigned architecture = NVML_DEVICE_ARCH_UNKNOWN;
  if (device->nvml->architecture && device->nvml->architecture(handle_of(device), &architecture) == NVML_SUCCESS &&
      architecture < NVML_DEVICE_ARCH_VOLTA) {
    fail(error, NVML_ERROR_NOT_SUPPORTED, "GPU %u is older than Volta and has no locked clocks", device->index);
    return false;
  }
  if (clock_emulated(device) || process_has_sys_admin()) return true;
  fail(error, NVML_ERROR_NO_PERMISSION, "locking clocks needs CAP_SYS_ADMIN, which this process does not have");
  return false;
}

}  // namespace powerccl::device
