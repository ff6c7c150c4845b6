// SPDX-License-Identifier: Apache-2.0
// Built twice: as a current NVML, and with FAKE_NVML_OLD as one that lacks what older drivers lack.
#include "fake_nvml.h"

#include <fcntl.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

namespace {

FakeState* state() {
  static FakeState* mapped = [] {
    const char* path = getenv("FAKE_NVML_STATE");
    int fd = open(path ? path : "", O_RDWR | O_CLOEXEC);
    void* map = fd < 0 ? MAP_FAILED : mmap(nullptr, sizeof(FakeState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      fprintf(stderr, "fake NVML: FAKE_NVML_STATE cannot be mapped\n");
      abort();
    }
    close(fd);
    return static_cast<FakeState*>(map);
  }();
  return mapped;
}

void hang(const FakeGpu* gpu) {
  while (gpu && __atomic_load_n(&gpu->hangs, __ATOMIC_ACQUIRE)) usleep(1000);
}

nvmlReturn_t answer(FakeFunction function, const FakeGpu* gpu = nullptr) {
  hang(gpu);
  uint32_t call = __atomic_fetch_add(&state()->calls[function], 1, __ATOMIC_ACQ_REL);
  if (gpu && gpu->lost) return NVML_ERROR_GPU_IS_LOST;
  uint32_t first = state()->succeed_first[function];
  uint32_t only = state()->fail_only[function];
  bool fails = call >= first && (only == 0 || call < first + only);
  return fails ? static_cast<nvmlReturn_t>(state()->result[function]) : NVML_SUCCESS;
}

FakeGpu* gpu_of(nvmlDevice_t handle) {
  return reinterpret_cast<FakeGpu*>(handle);
}
unsigned index_of(nvmlDevice_t handle) {
  return static_cast<unsigned>(gpu_of(handle) - state()->gpu);
}

nvmlReturn_t find(const char* format, const char* name, nvmlDevice_t* handle) {
  for (unsigned i = 0; i < state()->gpus; ++i) {
    char own[80];
    snprintf(own, sizeof own, format, i);
    if (strcmp(own, name) == 0) {
      *handle = reinterpret_cast<nvmlDevice_t>(&state()->gpu[i]);
      return answer(kFakeOther);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

template <typename Value>
nvmlReturn_t give(nvmlReturn_t result, Value value, Value* to) {
  if (result == NVML_SUCCESS) *to = value;
  return result;
}

[[maybe_unused]] void burn(uint32_t microseconds) {
  timespec start;
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while ((now.tv_sec - start.tv_sec) * 1000000 + (now.tv_nsec - start.tv_nsec) / 1000 < microseconds);
}

}  // namespace

extern "C" {

EXPORT nvmlReturn_t nvmlInit_v2() {
  return answer(kFakeInit);
}
EXPORT nvmlReturn_t nvmlShutdown() {
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned size) {
  snprintf(text, size, "999.1");
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned size) {
  snprintf(text, size, "13.999.1");
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  return give(answer(kFakeCount), state()->gpus, count);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* handle) {
  if (index >= state()->gpus) return NVML_ERROR_INVALID_ARGUMENT;
  hang(&state()->gpu[index]);
  return give(answer(kFakeByIndex), reinterpret_cast<nvmlDevice_t>(&state()->gpu[index]), handle);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* handle) {
  return find(FAKE_UUID_FORMAT, uuid, handle);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pci, nvmlDevice_t* handle) {
  return find(FAKE_PCI_FORMAT, pci, handle);
}
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char* text, unsigned size) {
  snprintf(text, size, FAKE_UUID_FORMAT, index_of(handle));
  return answer(kFakeOther, gpu_of(handle));
}
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char* text, unsigned size) {
  snprintf(text, size, "Fake \"T4\"");
  return answer(kFakeOther, gpu_of(handle));
}
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* info) {
  memset(info, 0, sizeof *info);
  snprintf(info->busId, sizeof info->busId, FAKE_PCI_FORMAT, index_of(handle));
  return answer(kFakeOther, gpu_of(handle));
}
EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, nvmlDeviceArchitecture_t* architecture) {
  return give(answer(kFakeOther, gpu_of(handle)), static_cast<nvmlDeviceArchitecture_t>(state()->architecture),
              architecture);
}
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned* mhz) {
  const FakeGpu* gpu = gpu_of(handle);
  unsigned locked = __atomic_load_n(&gpu->locked_mhz, __ATOMIC_ACQUIRE);
  unsigned sm = locked ? locked : gpu->clock_mhz;
  return give(answer(kFakeClock, gpu), type == NVML_CLOCK_MEM ? 5000u : sm, mhz);
}
EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, nvmlClockType_t, unsigned* mhz) {
  return give(answer(kFakeClock, gpu_of(handle)), 1590u, mhz);
}
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned* milliwatts) {
  return give(answer(kFakePower, gpu_of(handle)), gpu_of(handle)->power_mw + 1, milliwatts);
}
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t, unsigned* celsius) {
  return give(answer(kFakeOther, gpu_of(handle)), state()->temperature_c, celsius);
}
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* rates) {
  return give(answer(kFakeOther, gpu_of(handle)), nvmlUtilization_t{state()->utilization_pct, 5}, rates);
}

#ifdef FAKE_NVML_OLD
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long* reasons) {
  return give(answer(kFakeOther, gpu_of(handle)), 4ull, reasons);
}
#else
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long* reasons) {
  return give(answer(kFakeOther, gpu_of(handle)), 0x20ull, reasons);
}
EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned* milliwatts) {
  return give(answer(kFakePowerLimit, gpu_of(handle)), state()->power_limit_mw, milliwatts);
}
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned* least, unsigned* most) {
  *least = 30000;
  return give(answer(kFakePowerLimit, gpu_of(handle)), state()->power_limit_max_mw, most);
}
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  return give(answer(kFakeOther, gpu_of(handle)), index_of(handle), index);
}
EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t handle, unsigned, unsigned max_mhz) {
  nvmlReturn_t result = answer(kFakeLock, gpu_of(handle));
  if (result != NVML_SUCCESS) return result;
  __atomic_store_n(&gpu_of(handle)->locked_mhz, max_mhz, __ATOMIC_RELEASE);
  __atomic_fetch_add(&gpu_of(handle)->locks, 1, __ATOMIC_ACQ_REL);
  return result;
}
EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t handle) {
  nvmlReturn_t result = answer(kFakeReset, gpu_of(handle));
  if (result != NVML_SUCCESS) return result;
  __atomic_store_n(&gpu_of(handle)->locked_mhz, 0, __ATOMIC_RELEASE);
  __atomic_fetch_add(&gpu_of(handle)->resets, 1, __ATOMIC_ACQ_REL);
  return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long* millijoules) {
  burn(state()->energy_read_us);
  unsigned long long value = __atomic_add_fetch(&gpu_of(handle)->energy_mj, 1, __ATOMIC_ACQ_REL);
  return give(answer(kFakeEnergy, gpu_of(handle)), value, millijoules);
}
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t* values) {
  for (int i = 0; i < count; ++i) {
    bool known = values[i].fieldId == NVML_FI_DEV_POWER_INSTANT;
    values[i].nvmlReturn = known ? answer(kFakePowerField, gpu_of(handle)) : NVML_ERROR_NOT_SUPPORTED;
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    values[i].value.uiVal = gpu_of(handle)->power_mw;
  }
  return gpu_of(handle)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
#endif
}
