// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "daemon/driver.h"
#include "device/nvml_clock.h"

namespace powerccl::daemon {

struct GpuSettings {
  uint32_t min_mhz = 0, max_mhz = 0;              // the administrator's range; 0: the GPU's own
  uint32_t usual_min_mhz = 0, usual_max_mhz = 0;  // what to go back to; 0: not locked
  std::string device_files;                       // "/dev/nvidia%"
  bool dry = false;
};

// All GPUs of the machine through NVML. Of its calls one is made at a time; about() may be called beside it.
class GpuDriver {
 public:
  GpuDriver() = default;
  ~GpuDriver();
  GpuDriver(const GpuDriver&) = delete;
  GpuDriver& operator=(const GpuDriver&) = delete;
  // False with a reason: no NVML, or no right to set clocks.
  bool open(const GpuSettings& settings, std::string* reason);
  bool emulated() const { return emulated_; }

  const std::vector<DeviceAbout>& about() const { return about_; }
  Outcome set(size_t index, uint32_t min_mhz, uint32_t max_mhz);
  Outcome restore(size_t index);
  Outcome read(size_t index);

 private:
  void add(const char* uuid);

  GpuSettings settings_;
  bool emulated_ = false;
  std::vector<device::ClockDevice> gpus_;
  std::vector<DeviceAbout> about_;
};

}  // namespace powerccl::daemon
