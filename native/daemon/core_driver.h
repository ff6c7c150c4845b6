// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "daemon/driver.h"
#include "device/core_clock.h"

namespace powerccl::daemon {

// Processor cores whose clock is no other core's, through cpufreq. What is set is a core's highest clock.
class CoreDriver : public Driver {
 public:
  // `left`: the marks of an earlier daemon. The cores among them are restored first, or what it set would be taken for
  // the default. False with a reason: there is no such core.
  bool open(const std::string& sysfs, bool dry, const std::vector<std::string>& left, std::string* reason);

  const std::vector<DeviceAbout>& about() const override { return about_; }
  std::string mark_of(size_t index) override;
  Outcome set(size_t index, uint32_t min_mhz, uint32_t max_mhz) override;
  Outcome restore(size_t index, const std::string& mark) override;
  Outcome read(size_t index) override;

 private:
  std::string cores_;
  bool dry_ = false;
  std::vector<device::CoreClock> clocks_;
  std::vector<DeviceAbout> about_;
};

}  // namespace powerccl::daemon
