// SPDX-License-Identifier: Apache-2.0
#include "device/nvml_sample.h"

#include <stdio.h>
#include <string.h>

#include "device/nvml_library.h"

namespace powerccl::device {
namespace {

nvmlDevice_t handle_of(const SampledGpu* gpu) {
  return static_cast<nvmlDevice_t>(gpu->handle);
}

nvmlReturn_t read_field(const NvmlFunctions* nvml, nvmlDevice_t handle, unsigned field, uint64_t* value) {
  if (!nvml->fields) return NVML_ERROR_FUNCTION_NOT_FOUND;
  nvmlFieldValue_t read;
  memset(&read, 0, sizeof read);
  read.fieldId = field;
  nvmlReturn_t result = nvml->fields(handle, 1, &read);
  if (result != NVML_SUCCESS) return result;
  if (read.nvmlReturn != NVML_SUCCESS) return read.nvmlReturn;
  switch (read.valueType) {
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      *value = read.value.uiVal;
      return NVML_SUCCESS;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      *value = read.value.ulVal;
      return NVML_SUCCESS;
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      *value = read.value.ullVal;
      return NVML_SUCCESS;
    default:
      return NVML_ERROR_NOT_SUPPORTED;
  }
}

// The highest number that each metric can have. NVML marks "not available" with all bits set: 2^32 - 1 or 2^64 - 1.
// No part draws 4 MW, counts clocks in THz or works at 256 degrees.
constexpr uint64_t kHighest[kMetrics] = {
    UINT32_MAX - 1,    // power, mW
    INT64_MAX / 1000,  // energy, mJ: becomes microjoules
    UINT32_MAX - 1,    // SM clock, MHz
    UINT32_MAX - 1,    // memory clock, MHz
    255,               // temperature, degrees Celsius
    INT64_MAX,         // throttle reasons
    100,               // utilization, %
};

int take(Metric metric, nvmlReturn_t result, uint64_t read, const char* what, int64_t* value, Error* error) {
  const int code = nvml_check(result, what, error);
  if (code != kOk) return code;
  if (read > kHighest[metric])
    return fail(error, kNoReading, "%s: NVML answers %llu, which is not a reading", what,
                static_cast<unsigned long long>(read));
  *value = static_cast<int64_t>(read);
  return kOk;
}

int sample_power(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!gpu->power_is_instant && !nvml->power) return nvml_lacks("nvmlDeviceGetPowerUsage", error);
  uint64_t field = 0;
  unsigned usage = 0;
  const nvmlReturn_t result = gpu->power_is_instant
                                  ? read_field(nvml, handle_of(gpu), NVML_FI_DEV_POWER_INSTANT, &field)
                                  : nvml->power(handle_of(gpu), &usage);
  return take(kPowerMw, result, gpu->power_is_instant ? field : usage, "reading power", value, error);
}

int sample_energy(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->energy) return nvml_lacks("nvmlDeviceGetTotalEnergyConsumption", error);
  unsigned long long millijoules = 0;
  const nvmlReturn_t result = nvml->energy(handle_of(gpu), &millijoules);
  const int code = take(kEnergyUj, result, millijoules, "reading the energy counter", value, error);
  if (code == kOk) *value *= 1000;
  return code;
}

int sample_clock(const NvmlFunctions* nvml, const SampledGpu* gpu, Metric metric, int64_t* value, Error* error) {
  if (!nvml->clock) return nvml_lacks("nvmlDeviceGetClockInfo", error);
  unsigned read = 0;
  const nvmlReturn_t result =
      nvml->clock(handle_of(gpu), metric == kSmClockMhz ? NVML_CLOCK_SM : NVML_CLOCK_MEM, &read);
  return take(metric, result, read, "reading a clock", value, error);
}

int sample_temperature(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->temperature) return nvml_lacks("nvmlDeviceGetTemperature", error);
  unsigned read = 0;
  const nvmlReturn_t result = nvml->temperature(handle_of(gpu), NVML_TEMPERATURE_GPU, &read);
  return take(kTemperatureC, result, read, "reading the temperature", value, error);
}

int sample_throttle(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->throttle_reasons) return nvml_lacks("nvmlDeviceGetCurrentClocksEventReasons", error);
  unsigned long long bits = 0;
  const nvmlReturn_t result = nvml->throttle_reasons(handle_of(gpu), &bits);
  return take(kThrottleReasons, result, bits, "reading the throttle reasons", value, error);
}

int sample_utilization(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->utilization) return nvml_lacks("nvmlDeviceGetUtilizationRates", error);
  nvmlUtilization_t rates = {};
  const nvmlReturn_t result = nvml->utilization(handle_of(gpu), &rates);
  return take(kUtilizationPct, result, rates.gpu, "reading the utilisation", value, error);
}

// A power limit, or -1 for what is none: 0 or NVML's mark for "not available".
int64_t limit(unsigned read_mw) {
  return read_mw == 0 || read_mw == UINT32_MAX ? -1 : int64_t{read_mw};
}

void describe(const NvmlFunctions* nvml, nvmlDevice_t handle, uint32_t index, SampledGpu* gpu) {
  gpu->handle = handle;
  gpu->index = index;
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  if (nvml->uuid && nvml->uuid(handle, text, sizeof text) == NVML_SUCCESS)
    snprintf(gpu->uuid, sizeof gpu->uuid, "%.47s", text);
  nvmlPciInfo_t pci = {};
  if (nvml->pci_info && nvml->pci_info(handle, &pci) == NVML_SUCCESS)
    snprintf(gpu->pci, sizeof gpu->pci, "%.19s", pci.busId);
  if (!nvml->name || nvml->name(handle, gpu->name, sizeof gpu->name) != NVML_SUCCESS) gpu->name[0] = '\0';
  uint64_t power = 0;
  gpu->power_is_instant = read_field(nvml, handle, NVML_FI_DEV_POWER_INSTANT, &power) == NVML_SUCCESS;
  unsigned read_mw = 0;
  unsigned lowest_mw = 0;
  if (nvml->power_limit && nvml->power_limit(handle, &read_mw) == NVML_SUCCESS) gpu->power_limit_mw = limit(read_mw);
  if (nvml->power_limit_range && nvml->power_limit_range(handle, &lowest_mw, &read_mw) == NVML_SUCCESS)
    gpu->power_limit_max_mw = limit(read_mw);
}

}  // namespace

int sampling_start(Sampling* sampling, Error* error) {
  *sampling = Sampling{};
  Error own;
  const NvmlFunctions* nvml = nvml_acquire(&own);
  if (!nvml) return fail(error, own.code, "%s", own.text);
  unsigned count = 0;
  int code = nvml->count && nvml->by_index ? nvml_check(nvml->count(&count), "counting GPUs", error)
                                           : nvml_lacks("nvmlDeviceGetCount_v2", error);
  if (code != kOk) {
    nvml_release(nvml);
    return code;
  }
  sampling->nvml = nvml;
  sampling->gpus_listed = count < kMaxGpus ? count : kMaxGpus;
  sampling->emulated = nvml->emulator_version;
  if (!nvml->driver_version || nvml->driver_version(sampling->driver, sizeof sampling->driver) != NVML_SUCCESS)
    sampling->driver[0] = '\0';
  if (!nvml->nvml_version || nvml->nvml_version(sampling->nvml_version, sizeof sampling->nvml_version) != NVML_SUCCESS)
    sampling->nvml_version[0] = '\0';
  if (nvml->emulated_platform) nvml->emulated_platform(sampling->emulated_platform, sizeof sampling->emulated_platform);
  return kOk;
}

int sampling_describe(const Sampling* sampling, uint32_t index, SampledGpu* gpu, Error* error) {
  if (!sampling->nvml) return fail(error, kBadArgument, "NVML is not open");
  nvmlDevice_t handle = nullptr;
  const int code = nvml_check(sampling->nvml->by_index(index, &handle), "opening the GPU", error);
  if (code == kOk) describe(sampling->nvml, handle, index, gpu);
  return code;
}

int sampling_open(Sampling* sampling, Error* error) {
  if (int code = sampling_start(sampling, error); code != kOk) return code;
  for (uint32_t index = 0; index < sampling->gpus_listed; ++index) {
    // In a container with two GPUs of eight, NVML may list eight.
    if (sampling_describe(sampling, index, &sampling->gpu[sampling->gpu_count], nullptr) != kOk)
      ++sampling->gpus_refused;
    else
      ++sampling->gpu_count;
  }
  return kOk;
}

void sampling_close(Sampling* sampling) {
  nvml_release(sampling->nvml);
  *sampling = Sampling{};
}

int sample(const Sampling* sampling, const SampledGpu* gpu, Metric metric, int64_t* value, Error* error) {
  const NvmlFunctions* nvml = sampling->nvml;
  if (!nvml) return fail(error, kBadArgument, "NVML is not open");
  switch (metric) {
    case kPowerMw:
      return sample_power(nvml, gpu, value, error);
    case kEnergyUj:
      return sample_energy(nvml, gpu, value, error);
    case kSmClockMhz:
      return sample_clock(nvml, gpu, kSmClockMhz, value, error);
    case kMemClockMhz:
      return sample_clock(nvml, gpu, kMemClockMhz, value, error);
    case kTemperatureC:
      return sample_temperature(nvml, gpu, value, error);
    case kThrottleReasons:
      return sample_throttle(nvml, gpu, value, error);
    case kUtilizationPct:
      return sample_utilization(nvml, gpu, value, error);
    case kMetrics:
      break;
  }
  return fail(error, kBadArgument, "no such metric");
}

int active_nvlinks(const Sampling* sampling, const SampledGpu* gpu) {
  if (!sampling->nvml || !sampling->nvml->nvlink_state) return -1;
  int active = 0;
  for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    const nvmlReturn_t result = sampling->nvml->nvlink_state(handle_of(gpu), link, &state);
    // These two answers mean that the GPU has no more links.
    if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_INVALID_ARGUMENT) break;
    if (result != NVML_SUCCESS) return -1;
    if (state == NVML_FEATURE_ENABLED) ++active;
  }
  return active;
}

}  // namespace powerccl::device
