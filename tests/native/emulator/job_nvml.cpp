// SPDX-License-Identifier: Apache-2.0
// What programs expect of NVML.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "job.h"

using namespace job;

SCENARIO(nvml) {
  unsigned value = 0, count = 0;
  CHECK_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  nvmlDevice_t device = nvml_device(1);
  OK(nvmlDeviceGetCount_v2(&count));
  CHECK_EQ(count, 8);
  char text[96];
  OK(nvmlSystemGetDriverVersion(text, sizeof text));
  CHECK(strstr(text, "powerccl-emulator") != nullptr);
  CHECK(dlsym(RTLD_DEFAULT, "powerccl_emulator_version") != nullptr);
  OK(nvmlDeviceGetName(device, text, sizeof text));
  CHECK(strcmp(text, "Tesla T4") == 0);
  CHECK_EQ(nvmlDeviceGetName(device, text, 4), NVML_ERROR_INSUFFICIENT_SIZE);
  nvmlDevice_t same;
  OK(nvmlDeviceGetUUID(device, text, sizeof text));
  OK(nvmlDeviceGetHandleByUUID(text, &same));
  CHECK(same == device);
  nvmlPciInfo_t pci;
  OK(nvmlDeviceGetPciInfo_v3(device, &pci));
  OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &same));
  CHECK(same == device);
  OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &same));
  CHECK_EQ(nvmlDeviceGetHandleByUUID("GPU-none", &same), NVML_ERROR_NOT_FOUND);
  CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(8, &same), NVML_ERROR_INVALID_ARGUMENT);
  OK(nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &value));
  CHECK_EQ(value, 300);  // asleep
  OK(nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_SM, &value));
  CHECK_EQ(value, 1590);
  unsigned memory_clocks[2], clocks[128];
  count = 2;
  OK(nvmlDeviceGetSupportedMemoryClocks(device, &count, memory_clocks));
  count = 10;
  CHECK_EQ(nvmlDeviceGetSupportedGraphicsClocks(device, memory_clocks[0], &count, clocks),
           NVML_ERROR_INSUFFICIENT_SIZE);
  OK(nvmlDeviceGetSupportedGraphicsClocks(device, memory_clocks[0], &count, clocks));
  CHECK_EQ(count, 87);
  CHECK_EQ(clocks[0], 1590);
  CHECK_EQ(clocks[86], 300);
  OK(nvmlDeviceGetPowerUsage(device, &value));
  CHECK_NEAR(value, 10'000, 1000);
  OK(nvmlDeviceGetEnforcedPowerLimit(device, &value));
  CHECK_EQ(value, 70'000);
  nvmlTemperature_t temperature{nvmlTemperature_v1, NVML_TEMPERATURE_GPU, 0};
  OK(nvmlDeviceGetTemperatureV(device, &temperature));
  CHECK_NEAR(temperature.temperature, 52, 20);
  unsigned long long reasons = 0;
  OK(nvmlDeviceGetCurrentClocksEventReasons(device, &reasons));
  CHECK_EQ(reasons, nvmlClocksEventReasonGpuIdle);
  nvmlUtilization_t utilization;
  OK(nvmlDeviceGetUtilizationRates(device, &utilization));
  CHECK_EQ(utilization.gpu, 0);
  nvmlFieldValue_t fields[2] = {};
  fields[0].fieldId = NVML_FI_DEV_POWER_INSTANT;
  fields[1].fieldId = 9999;
  OK(nvmlDeviceGetFieldValues(device, 2, fields));
  CHECK_EQ(fields[0].nvmlReturn, NVML_SUCCESS);
  CHECK_NEAR(fields[0].value.uiVal, 10'000, 1000);
  CHECK_EQ(fields[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  CHECK_EQ(nvmlDeviceSetGpuLockedClocks(device, 900, 600), NVML_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(nvmlDeviceGetPowerUsage(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  OK(nvmlShutdown());
  CHECK_EQ(nvmlDeviceGetPowerUsage(device, &value), NVML_ERROR_UNINITIALIZED);
}

// Kernel, event, energy: the counter agrees with the powers read while it ran.
SCENARIO(energy) {
  const Gpu gpu;
  lock_clock(0, 600);
  const nvmlDevice_t device = nvml_device(0);
  const CUstream stream = new_stream();
  const CUevent begin = new_event(), end = new_event();
  OK(gpu.burn(stream, 20));
  OK(cuEventRecord(begin, stream));
  OK(gpu.burn(stream, 10'000));  // ends with this process, long before it is over
  OK(cuEventRecord(end, stream));
  OK(cuEventSynchronize(begin));
  unsigned power_mw = 0, clock_mhz = 0;
  nvmlUtilization_t utilization;
  sleep_ms(60);
  unsigned long long from_mj = 0, to_mj = 0;
  OK(nvmlDeviceGetTotalEnergyConsumption(device, &from_mj));
  const uint64_t from_ns = now_ns();
  OK(nvmlDeviceGetPowerUsage(device, &power_mw));
  OK(nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &clock_mhz));
  OK(nvmlDeviceGetUtilizationRates(device, &utilization));
  sleep_ms(200);
  OK(nvmlDeviceGetTotalEnergyConsumption(device, &to_mj));
  const double seconds = static_cast<double>(now_ns() - from_ns) * 1e-9;
  CHECK_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);  // all of it lay inside the kernel
  CHECK_EQ(clock_mhz, 600);
  CHECK_EQ(utilization.gpu, 100);
  CHECK_NEAR(static_cast<double>(to_mj - from_mj) / seconds, power_mw, 0.15 * power_mw);  // readings are 20 ms apart
  OK(nvmlDeviceResetGpuLockedClocks(device));
}

SCENARIO(locks_and_leaves) {
  OK(nvmlDeviceSetGpuLockedClocks(nvml_device(2), 750, 750));
}

// Locked clocks outlive the process that set them, however it ended.
SCENARIO(locks_and_dies) {
  OK(nvmlDeviceSetGpuLockedClocks(nvml_device(2), 750, 750));
  raise(SIGKILL);
}

static unsigned clock_under_load(int device) {
  const Gpu gpu(device);
  const CUstream stream = new_stream();
  OK(gpu.burn(stream, 300));
  sleep_ms(15);
  unsigned clock_mhz = 0;
  OK(nvmlDeviceGetClockInfo(nvml_device(static_cast<unsigned>(device)), NVML_CLOCK_SM, &clock_mhz));
  OK(cuStreamSynchronize(stream));
  return clock_mhz;
}

SCENARIO(finds_lock) {
  CHECK_EQ(clock_under_load(2), 750);
  OK(nvmlDeviceResetGpuLockedClocks(nvml_device(2)));
  sleep_ms(5);
  CHECK(clock_under_load(2) > 750);
}

// 8 GPUs' calls wait for each other in the driver, over threads and processes: 250 us each.
SCENARIO(clock_calls) {
  for (unsigned i = 0; i < 8; ++i) nvml_device(i);
  const uint64_t begun = now_ns();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i)
    threads.emplace_back([i] { OK(nvmlDeviceSetGpuLockedClocks(nvml_device(i), 600, 600)); });
  for (std::thread& thread : threads) thread.join();
  CHECK(now_ns() - begun >= 8 * 250'000);
  for (unsigned i = 0; i < 8; ++i) OK(nvmlDeviceResetGpuLockedClocks(nvml_device(i)));
}

SCENARIO(failing_calls) {  // POWERCCL_EMULATOR_NVML_FAIL=set_locked_clocks:after=3:code=15,power:after=0:code=3
  const nvmlDevice_t device = nvml_device(0);
  unsigned power_mw = 0;
  for (int i = 0; i < 3; ++i) OK(nvmlDeviceSetGpuLockedClocks(device, 600, 600));
  CHECK_EQ(nvmlDeviceSetGpuLockedClocks(device, 900, 900), NVML_ERROR_GPU_IS_LOST);
  CHECK_EQ(nvmlDeviceSetGpuLockedClocks(device, 900, 900), NVML_ERROR_GPU_IS_LOST);
  CHECK_EQ(nvmlDeviceGetPowerUsage(device, &power_mw), NVML_ERROR_NOT_SUPPORTED);
  sleep_ms(5);
  CHECK_EQ(clock_under_load(0), 600);  // the failing ones changed nothing
  OK(nvmlDeviceResetGpuLockedClocks(device));
}

SCENARIO(forbidden) {  // POWERCCL_EMULATOR_MAY_SET_CLOCKS=0
  const nvmlDevice_t device = nvml_device(0);
  CHECK_EQ(nvmlDeviceSetGpuLockedClocks(device, 600, 600), NVML_ERROR_NO_PERMISSION);
  CHECK_EQ(nvmlDeviceResetGpuLockedClocks(device), NVML_ERROR_NO_PERMISSION);
}

SCENARIO(nvml_after_fork) {
  const nvmlDevice_t device = nvml_device(0);
  const pid_t child = fork();
  if (child == 0) _exit(nvmlDeviceSetGpuLockedClocks(device, 600, 600) == NVML_SUCCESS ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  OK(nvmlDeviceResetGpuLockedClocks(device));
}
