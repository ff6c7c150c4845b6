// SPDX-License-Identifier: Apache-2.0
// libnvidia-ml of the emulator. Readings come from the board page without a message; clocks are set by a request that
// returns when the real call would.
#include <nvml.h>
#include <time.h>

#include <cstdio>
#include <cstring>

#include "emulator/client/gpu_ids.h"
#include "emulator/nvml/session.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// Shows in-job code and the agent that these GPUs are emulated: consent to set clocks is implied.
EXPORT const char powerccl_emulator_version[];
const char powerccl_emulator_version[] = "0.1.0";

using namespace powerccl::emulator;

namespace {

constexpr unsigned kIdleMemoryClockMhz = 405;  // as a T4 lists it

nvmlReturn_t copy_text(const char* text, char* target, unsigned capacity) {
  if (target == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= capacity) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(target, text, strlen(text) + 1);
  return NVML_SUCCESS;
}

}  // namespace

EXPORT nvmlReturn_t nvmlInit_v2() {
  return begin_session();
}
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned) {
  return begin_session();
}
EXPORT nvmlReturn_t nvmlShutdown() {
  return end_session();
}

EXPORT const char* nvmlErrorString(nvmlReturn_t result) {
  constexpr std::pair<nvmlReturn_t, const char*> kTexts[] = {
      {NVML_SUCCESS, "Success"},
      {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
      {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
      {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
      {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
      {NVML_ERROR_NOT_FOUND, "Not Found"},
      {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
      {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
      {NVML_ERROR_TIMEOUT, "Timeout"},
      {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
  };
  for (const auto& [code, text] : kTexts)
    if (code == result) return text;
  return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  const Access accessed = access();
  return accessed.result != NVML_SUCCESS ? accessed.result
                                         : copy_text(accessed.connection->board().driver_version, version, length);
}

// Which platform is served, with a fingerprint of its file and changes: powerccl-bench refuses to mix two in one file.
EXPORT nvmlReturn_t powerccl_emulator_platform(char* name, unsigned length) {
  const Access accessed = access();
  return accessed.result != NVML_SUCCESS ? accessed.result
                                         : copy_text(accessed.connection->board().platform, name, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return copy_text("12.powerccl-emulator", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = 12080;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  const Access accessed = access();
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = accessed.connection->board().gpus;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const Access accessed = access(handle_of(index));
  if (accessed.result == NVML_SUCCESS) *device = handle_of(index);
  return accessed.result;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  const Access accessed = access();
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < accessed.connection->board().gpus; ++i) {
    if (strcmp(accessed.connection->board().gpu[i].uuid, uuid) != 0) continue;
    *device = handle_of(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* device) {
  const Access accessed = access();
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  unsigned long number = 0;
  if (bus == nullptr || device == nullptr || !parse_bus_id(bus, number)) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < accessed.connection->board().gpus; ++i) {
    if (accessed.connection->board().gpu[i].bus != number) continue;
    *device = handle_of(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  return on_gpu(device, index, [&](const BoardPage&, uint32_t gpu) {
    *index = gpu;
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return on_gpu(device, name,
                [&](const BoardPage& board, uint32_t) { return copy_text(board.gpu_name, name, length); });
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return on_gpu(device, uuid,
                [&](const BoardPage& board, uint32_t gpu) { return copy_text(board.gpu[gpu].uuid, uuid, length); });
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return on_gpu(device, pci, [&](const BoardPage& board, uint32_t gpu) {
    memset(pci, 0, sizeof *pci);
    pci->bus = board.gpu[gpu].bus;
    snprintf(pci->busId, sizeof pci->busId, "%s", board.gpu[gpu].pci);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", board.gpu[gpu].bus);
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return on_gpu(device, major, [&](const BoardPage& board, uint32_t) {
    *major = static_cast<int>(board.compute_major);
    *minor = static_cast<int>(board.compute_minor);
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  return on_gpu(device, architecture, [&](const BoardPage& board, uint32_t) {
    *architecture = board.compute_major == 7
                        ? (board.compute_minor >= 5 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA)
                    : board.compute_major == 8 ? NVML_DEVICE_ARCH_AMPERE
                    : board.compute_major == 9 ? NVML_DEVICE_ARCH_HOPPER
                                               : NVML_DEVICE_ARCH_UNKNOWN;
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return on_gpu(device, memory, [&](const BoardPage& board, uint32_t) {
    *memory = {.total = board.memory_bytes, .free = board.memory_bytes, .used = 0};
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* clock) {
  return reading(device, "clock", clock, [&](const Readings& r, const BoardPage&) {
    *clock = type == NVML_CLOCK_MEM ? r.memory_clock_mhz : r.clock_mhz;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t, unsigned* clock) {
  return nvmlDeviceGetClockInfo(device, type, clock);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* clock) {
  return reading(device, "clock", clock, [&](const Readings&, const BoardPage& board) {
    *clock = type == NVML_CLOCK_MEM ? board.memory_clock_mhz : board.clock_max_mhz;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned* count, unsigned* clocks) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned capacity = *count;
  *count = 2;
  if (clocks == nullptr || capacity < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
  clocks[0] = accessed.connection->board().memory_clock_mhz;
  clocks[1] = kIdleMemoryClockMhz;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned* count,
                                                         unsigned* clocks) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const BoardPage& board = accessed.connection->board();
  if (memory_mhz != board.memory_clock_mhz && memory_mhz != kIdleMemoryClockMhz) return NVML_ERROR_NOT_FOUND;
  const unsigned capacity = *count;
  *count = (board.clock_max_mhz - board.clock_min_mhz) / board.clock_step_mhz + 1;
  if (clocks == nullptr || capacity < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; ++i)
    clocks[i] = board.clock_max_mhz - i * board.clock_step_mhz;  // downwards, as NVML has it
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* power_mw) {
  return reading(device, "power", power_mw, [&](const Readings& r, const BoardPage&) { *power_mw = r.power_mw; });
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned* limit_mw) {
  return reading(device, "power_limit", limit_mw,
                 [&](const Readings& r, const BoardPage&) { *limit_mw = r.power_limit_mw; });
}
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned* least_mw,
                                                                 unsigned* most_mw) {
  if (most_mw == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *most_mw = 0;
  // Emulated boards run at the highest limit, and cannot be set below it.
  const nvmlReturn_t result = nvmlDeviceGetPowerManagementLimit(device, least_mw);
  if (result == NVML_SUCCESS) *most_mw = *least_mw;
  return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long* energy_mj) {
  const nvmlReturn_t result = reading(device, "energy", energy_mj, [&](const Readings& r, const BoardPage& board) {
    *energy_mj = r.energy_mj;
    const timespec takes{static_cast<time_t>(board.energy_read_ns / 1'000'000'000),
                         static_cast<long>(board.energy_read_ns % 1'000'000'000)};
    if (board.energy_read_ns != 0) nanosleep(&takes, nullptr);
  });
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t, unsigned* temperature_c) {
  return reading(device, "temperature", temperature_c,
                 [&](const Readings& r, const BoardPage&) { *temperature_c = r.temperature_c; });
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature != nullptr && temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return reading(device, "temperature", temperature, [&](const Readings& r, const BoardPage&) {
    temperature->temperature = static_cast<int>(r.temperature_c);
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return reading(device, "utilization", utilization,
                 [&](const Readings& r, const BoardPage&) { *utilization = {r.utilization_pct, 0}; });
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* state) {
  return reading(device, "p_state", state,
                 [&](const Readings& r, const BoardPage&) { *state = static_cast<nvmlPstates_t>(r.p_state); });
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return reading(device, "throttle_reasons", reasons,
                 [&](const Readings& r, const BoardPage&) { *reasons = r.throttle_reasons; });
}
EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return on_gpu(device, mode, [&](const BoardPage&, uint32_t) {
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (accessed.connection->board().compute_major < 8) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = in_mig_mode(accessed.gpu) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_t*) {
  const Access accessed = access(device);
  if (accessed.result == NVML_SUCCESS) *count = 0;
  return accessed.result;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (count < 0 || (count > 0 && values == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) {
    nvmlFieldValue_t& field = values[i];
    field.nvmlReturn = NVML_SUCCESS;
    field.timestamp = static_cast<long long>(monotonic_ns() / 1000);
    if (field.fieldId == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) {
      field.valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
      field.nvmlReturn = nvmlDeviceGetTotalEnergyConsumption(device, &field.value.ullVal);
    } else if (field.fieldId == NVML_FI_DEV_POWER_INSTANT || field.fieldId == NVML_FI_DEV_POWER_AVERAGE) {
      field.valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
      field.nvmlReturn = nvmlDeviceGetPowerUsage(device, &field.value.uiVal);
    } else {
      field.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
  }
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned min_mhz, unsigned max_mhz) {
  if (min_mhz == 0 || max_mhz == 0 || min_mhz > max_mhz) return NVML_ERROR_INVALID_ARGUMENT;
  return set_clocks(device, "set_locked_clocks", min_mhz, max_mhz);
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
  return set_clocks(device, "reset_locked_clocks", 0, 0);
}

// Other names of functions above.
#undef nvmlInit
#undef nvmlDeviceGetCount
#undef nvmlDeviceGetHandleByIndex
#undef nvmlDeviceGetHandleByPciBusId
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares the name
#define SAME_AS(function, name) EXPORT __attribute__((alias(#function))) decltype(function) name;
SAME_AS(nvmlInit_v2, nvmlInit)
SAME_AS(nvmlDeviceGetCount_v2, nvmlDeviceGetCount)
SAME_AS(nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex)
SAME_AS(nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleByPciBusId)
SAME_AS(nvmlDeviceGetIndex, nvmlDeviceGetMinorNumber)
SAME_AS(nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetEnforcedPowerLimit)
SAME_AS(nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetPowerManagementDefaultLimit)
SAME_AS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons)
