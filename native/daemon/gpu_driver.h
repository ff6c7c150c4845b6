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

// All GPUs of the machine through NVML.
class GpuDriver : public Driver {
 public:
  ~GpuDriver() override;
  // False with a reason: no NVML, or no right to set clocks.
  bool open(const GpuSettings& settings, std::string* reason);
  bool emulated() const { return emulated_; }

  const std::vector<DeviceAbout>& about() const override { return about_; }
  std::string mark_of(size_t index) override { return about_[index].device; }
  Outcome set(size_t index, uint32_t min_mhz, uint32_t max_mhz) override;
  Outcome restore(size_t index, const std::string& mark) override;
  Outcome read(size_t index) override;

 private:
  void add(const char* uuid);

  GpuSettings settings_;
  bool emulated_ = false;
  std::vector<device::ClockDevice> gpus_;
  std::vector<DeviceAbout> about_;
};

}  // namespace powerccl::daemon
