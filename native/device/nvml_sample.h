// SPDX-License-Identifier: Apache-2.0
// Reading power, energy, clocks and what limits them from every GPU of the node through NVML.
//
// Each metric is its own call, because their prices differ a thousandfold: on an H200 power and clocks take about 1 us
// and the total-energy counter 2.4 to 4 ms (docs/concepts/hardware.md). Whoever samples decides how often to pay which.
#ifndef POWERCCL_DEVICE_NVML_SAMPLE_H
#define POWERCCL_DEVICE_NVML_SAMPLE_H
#include <stdint.h>

#include "device/error.h"
#include "device/nvml_clock.h"

namespace powerccl::device {

enum Metric : unsigned {
  kPowerMw,   // NVML_FI_DEV_POWER_INSTANT where the driver offers it, else nvmlDeviceGetPowerUsage
  kEnergyUj,  // nvmlDeviceGetTotalEnergyConsumption, since the driver was loaded; NVML counts in mJ
  kSmClockMhz,
  kMemClockMhz,
  kTemperatureC,
  kThrottleReasons,  // nvmlClocksEventReasons' bits
  kUtilizationPct,
  kMetrics,
};

constexpr unsigned kMaxGpus = 64;

struct SampledGpu {
  void* handle = nullptr;  // nvmlDevice_t
  uint32_t index = 0;      // NVML's
  bool power_is_instant = false;
  char uuid[48] = "";
  char pci[20] = "";
  char name[64] = "";
};

struct Sampling {
  const NvmlFunctions* nvml = nullptr;  // null: not open
  bool emulated = false;
  char driver[80] = "";
  char nvml_version[80] = "";
  uint32_t gpu_count = 0;  // GPUs that this process may open; NVML may know of more
  uint32_t gpus_refused = 0;
  SampledGpu gpu[kMaxGpus];
};

// Loads NVML and lists the GPUs. A machine with NVML and no GPU is a success with gpu_count 0.
int sampling_open(Sampling* sampling, Error* error);
void sampling_close(Sampling* sampling);

// One reading in the metric's own unit (see Metric). Errors: NVML's code, or kSymbolMissing.
int sample(const Sampling* sampling, const SampledGpu* gpu, Metric metric, int64_t* value, Error* error);

}  // namespace powerccl::device
#endif
