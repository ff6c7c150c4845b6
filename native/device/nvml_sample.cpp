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

nvmlReturn_t read_field(const NvmlFunctions* nvml, nvmlDevice_t handle, unsigned field, int64_t* value) {
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
      *value = static_cast<int64_t>(read.value.ulVal);
      return NVML_SUCCESS;
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      *value = static_cast<int64_t>(read.value.ullVal);
      return NVML_SUCCESS;
    default:
      return NVML_ERROR_NOT_SUPPORTED;
  }
}

// `read` is a reference because the call that fills it stands in the same argument list.
int read_unsigned(nvmlReturn_t result, const unsigned& read, const char* what, int64_t* value, Error* error) {
  if (result == NVML_SUCCESS) *value = read;
  return nvml_check(result, what, error);
}

int sample_power(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (gpu->power_is_instant)
    return nvml_check(read_field(nvml, handle_of(gpu), NVML_FI_DEV_POWER_INSTANT, value), "reading power", error);
  if (!nvml->power) return nvml_lacks("nvmlDeviceGetPowerUsage", error);
  unsigned read = 0;
  return read_unsigned(nvml->power(handle_of(gpu), &read), read, "reading power", value, error);
}

int sample_energy(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->energy) return nvml_lacks("nvmlDeviceGetTotalEnergyConsumption", error);
  unsigned long long millijoules = 0;
  int code = nvml_check(nvml->energy(handle_of(gpu), &millijoules), "reading the energy counter", error);
  if (code == kOk) *value = static_cast<int64_t>(millijoules) * 1000;
  return code;
}

int sample_clock(const NvmlFunctions* nvml, const SampledGpu* gpu, nvmlClockType_t type, int64_t* value, Error* error) {
  if (!nvml->clock) return nvml_lacks("nvmlDeviceGetClockInfo", error);
  unsigned read = 0;
  return read_unsigned(nvml->clock(handle_of(gpu), type, &read), read, "reading a clock", value, error);
}

int sample_temperature(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->temperature) return nvml_lacks("nvmlDeviceGetTemperature", error);
  unsigned read = 0;
  return read_unsigned(nvml->temperature(handle_of(gpu), NVML_TEMPERATURE_GPU, &read), read, "reading the temperature",
                       value, error);
}

int sample_throttle(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->throttle_reasons) return nvml_lacks("nvmlDeviceGetCurrentClocksEventReasons", error);
  unsigned long long bits = 0;
  int code = nvml_check(nvml->throttle_reasons(handle_of(gpu), &bits), "reading the throttle reasons", error);
  if (code == kOk) *value = static_cast<int64_t>(bits);
  return code;
}

int sample_utilization(const NvmlFunctions* nvml, const SampledGpu* gpu, int64_t* value, Error* error) {
  if (!nvml->utilization) return nvml_lacks("nvmlDeviceGetUtilizationRates", error);
  nvmlUtilization_t rates = {};
  return read_unsigned(nvml->utilization(handle_of(gpu), &rates), rates.gpu, "reading the utilisation", value, error);
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
  int64_t power = 0;
  gpu->power_is_instant = read_field(nvml, handle, NVML_FI_DEV_POWER_INSTANT, &power) == NVML_SUCCESS;
}

}  // namespace

int sampling_open(Sampling* sampling, Error* error) {
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
  sampling->emulated = nvml->emulator_version;
  if (!nvml->driver_version || nvml->driver_version(sampling->driver, sizeof sampling->driver) != NVML_SUCCESS)
    sampling->driver[0] = '\0';
  if (!nvml->nvml_version || nvml->nvml_version(sampling->nvml_version, sizeof sampling->nvml_version) != NVML_SUCCESS)
    sampling->nvml_version[0] = '\0';
  for (unsigned index = 0; index < count && sampling->gpu_count < kMaxGpus; ++index) {
    nvmlDevice_t handle = nullptr;
    // A container that was given two GPUs of eight may still be told of eight.
    if (nvml->by_index(index, &handle) != NVML_SUCCESS)
      ++sampling->gpus_refused;
    else
      describe(nvml, handle, index, &sampling->gpu[sampling->gpu_count++]);
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
      return sample_clock(nvml, gpu, NVML_CLOCK_SM, value, error);
    case kMemClockMhz:
      return sample_clock(nvml, gpu, NVML_CLOCK_MEM, value, error);
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

}  // namespace powerccl::device
