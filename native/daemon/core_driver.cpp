// SPDX-License-Identifier: Apache-2.0
#include "daemon/core_driver.h"

#include <unistd.h>

#include <algorithm>

namespace powerccl::daemon {
namespace {

constexpr uint32_t kKhz = 1000;  // in a MHz

Outcome failed(int code, const device::Error& error) {
  Outcome outcome;
  outcome.code = code;
  if (code != device::kOk) outcome.text = error.text;
  return outcome;
}

}  // namespace

bool CoreDriver::open(const std::string& sysfs, bool dry, const std::vector<std::string>& left, std::string* reason) {
  cores_ = sysfs + "/devices/system/cpu";
  dry_ = dry;
  const long cpus = sysconf(_SC_NPROCESSORS_CONF);
  device::Error error;
  for (const std::string& mark : left)  // tried again, and cleared, by the server
    if (!dry && device::is_core_clock(mark.c_str()))
      device::core_clock_restore_named(cores_.c_str(), mark.c_str(), &error);
  for (int cpu = 0; cpu < cpus; ++cpu) {
    device::CoreClock clock;
    if (device::core_clock_open(&clock, cores_.c_str(), cpu, &error) != device::kOk) continue;
    DeviceAbout about;
    about.device = "cpu" + std::to_string(cpu);
    about.name = "core";
    about.cpu = cpu;
    about.lowest_mhz = std::max(clock.lowest_khz / kKhz, 1u);
    about.highest_mhz = clock.usual_khz / kKhz;
    clocks_.push_back(clock);
    about_.push_back(std::move(about));
  }
  if (!clocks_.empty()) return true;
  *reason = error.text;
  return false;
}

std::string CoreDriver::mark_of(size_t index) {
  // Read anew: the administrator may have changed the default.
  device::CoreClock now;
  if (device::core_clock_open(&now, cores_.c_str(), about_[index].cpu, nullptr) != device::kOk) return "";
  return now.name;
}

Outcome CoreDriver::set(size_t index, uint32_t, uint32_t max_mhz) {
  if (dry_) return {};
  // The lowest may be no whole number of MHz.
  device::CoreClock& clock = clocks_[index];
  device::Error error;
  const int code = device::core_clock_set(&clock, std::max(max_mhz * kKhz, clock.lowest_khz), &error);
  return failed(code, error);
}

Outcome CoreDriver::restore(size_t index, const std::string& mark) {
  if (dry_) return {};
  device::Error error;
  const int code = mark.empty() ? device::core_clock_restore(&clocks_[index], &error)
                                : device::core_clock_restore_named(cores_.c_str(), mark.c_str(), &error);
  return failed(code, error);
}

Outcome CoreDriver::read(size_t index) {
  device::Error error;
  uint32_t khz = 0;
  Outcome outcome = failed(device::core_clock_read(cores_.c_str(), about_[index].cpu, &khz, &error), error);
  outcome.now_mhz = khz / kKhz;
  return outcome;
}

}  // namespace powerccl::daemon
