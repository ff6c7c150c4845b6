// SPDX-License-Identifier: Apache-2.0
// Reading power, energy, clocks and what limits them from every GPU of the node through NVML.
//
// Each metric is its own call, because their prices differ a thousandfold. On an H200 power and clocks take about 1 us,
// and the total-energy counter takes 2.4 to 4 ms (docs/concepts/hardware.md). The caller decides how often to read
// which.
#pragma once
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

constexpr unsigned kMaxGpus = 64;  // of a host; no server has more than 16

struct SampledGpu {
  void* handle = nullptr;  // nvmlDevice_t
  uint32_t index = 0;      // NVML's
  bool power_is_instant = false;
  int64_t power_limit_mw = -1;      // enforced when the GPU was described; -1: NVML does not say
  int64_t power_limit_max_mw = -1;  // the highest that can be set on this GPU
  char uuid[48] = "";
  char pci[20] = "";
  char name[64] = "";
};

struct Sampling {
  const NvmlFunctions* nvml = nullptr;  // null: not open
  bool emulated = false;
  char driver[80] = "";
  char nvml_version[80] = "";
  char emulated_platform[128] = "";  // with a fingerprint of its settings; empty for real GPUs
  uint32_t gpus_listed = 0;          // GPUs that NVML lists, kMaxGpus at most
  uint32_t gpu_count = 0;            // those of them that this process may open
  uint32_t gpus_refused = 0;
  SampledGpu gpu[kMaxGpus];
};

// Loads NVML and counts the GPUs, without a call to any of them: `gpu` stays empty.
int sampling_start(Sampling* sampling, Error* error);
// Opens and describes the GPU that NVML lists as `index`. It is the first call to this GPU, and may hang if it is
// broken.
int sampling_describe(const Sampling* sampling, uint32_t index, SampledGpu* gpu, Error* error);

// Loads NVML and describes all GPUs. A machine with NVML and no GPU is a success with gpu_count 0.
int sampling_open(Sampling* sampling, Error* error);
void sampling_close(Sampling* sampling);

// One reading in the metric's own unit (see Metric). Errors: NVML's code, kSymbolMissing, or kNoReading for an
// impossible number: NVML marks unavailable values by ones in all bits. A number that merely looks wrong is a reading.
int sample(const Sampling* sampling, const SampledGpu* gpu, Metric metric, int64_t* value, Error* error);

// Number of the GPU's active NVLinks; -1 where NVML does not say.
int active_nvlinks(const Sampling* sampling, const SampledGpu* gpu);

}  // namespace powerccl::device
