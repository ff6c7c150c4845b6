// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpu_driver.h"

#include <algorithm>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "device/nvml_sample.h"

namespace powerccl::daemon {
namespace {

constexpr char kDeviceFiles[] = "/dev/nvidia%";

std::string with_number(const std::string& pattern, uint32_t number) {
  std::string text = pattern;
  const size_t at = text.find('%');
  return at == std::string::npos ? text : text.replace(at, 1, std::to_string(number));
}

}  // namespace

GpuDriver::~GpuDriver() {
  for (device::ClockDevice& gpu : gpus_) device::clock_close(&gpu);
}

bool GpuDriver::open(const GpuSettings& settings, std::string* reason) {
  settings_ = settings;
  device::Sampling sampling;
  device::Error error;
  if (device::sampling_open(&sampling, &error) != device::kOk) {
    *reason = error.text;
    if (const char* hint = device::hint(error.code); *hint != '\0') *reason += std::string("; ") + hint;
    return false;
  }
  emulated_ = sampling.emulated;
  for (uint32_t i = 0; i < sampling.gpu_count; ++i) add(sampling.gpu[i].uuid);
  device::sampling_close(&sampling);
  if (gpus_.empty()) {
    *reason = "NVML finds no GPU that this process may open";
    return false;
  }
  if (!settings_.dry && !device::clock_may_lock(&gpus_[0], &error)) {
    *reason = error.text;
    return false;
  }
  return true;
}

void GpuDriver::add(const char* uuid) {
  device::ClockDevice gpu;
  device::Error error;
  if (device::clock_open(&gpu, uuid, &error) != device::kOk) {
    log(kWarning, "GPU %s is left out: %s", uuid, error.text);
    return;
  }
  DeviceAbout about;
  about.device = gpu.uuid;
  about.pci = gpu.pci;
  about.name = gpu.name;
  uint32_t minor = 0;
  if (emulated_ && settings_.device_files == kDeviceFiles)
    about.file.clear();  // emulated GPUs have none
  else if (device::clock_minor_number(&gpu, &minor, &error) == device::kOk)
    about.file = with_number(settings_.device_files, minor);
  else
    about.unfit = error.text;  // without its file no user can show a right to the GPU
  if (device::clock_mig_enabled(&gpu)) about.unfit = "it is divided into MIG slices, which share its clock";
  uint32_t lowest = 0, highest = 0;
  if (device::clock_max_sm_mhz(&gpu, &highest, &error) != device::kOk) about.unfit = error.text;
  if (device::clock_min_sm_mhz(&gpu, &lowest, &error) != device::kOk) lowest = 1;  // the driver clamps
  about.lowest_mhz = std::max(lowest, settings_.min_mhz);
  about.highest_mhz = settings_.max_mhz != 0 ? std::min(highest, settings_.max_mhz) : highest;
  if (about.unfit.empty() && about.lowest_mhz > about.highest_mhz)
    about.unfit = "none of its clocks is in the administrator's range";
  gpus_.push_back(gpu);
  about_.push_back(std::move(about));
}

Outcome GpuDriver::set(size_t index, uint32_t min_mhz, uint32_t max_mhz) {
  Outcome outcome;
  if (settings_.dry) return outcome;
  device::Error error;
  const int64_t begin_ns = now_ns();
  outcome.code = device::clock_lock(&gpus_[index], min_mhz, max_mhz, &error);
  outcome.driver_us = static_cast<uint32_t>((now_ns() - begin_ns) / 1000);
  if (outcome.code != device::kOk) {
    outcome.text = error.text;
    outcome.untouched = device::clock_refused(outcome.code);
    return outcome;
  }
  const Outcome seen = read(index);
  outcome.now_mhz = seen.now_mhz;
  outcome.reasons = seen.reasons;
  outcome.limit_mw = seen.limit_mw;
  return outcome;
}

Outcome GpuDriver::restore(size_t index) {
  Outcome outcome;
  if (settings_.dry) return outcome;
  device::Error error;
  const int64_t begin_ns = now_ns();
  outcome.code = settings_.usual_max_mhz != 0
                     ? device::clock_lock(&gpus_[index], settings_.usual_min_mhz, settings_.usual_max_mhz, &error)
                     : device::clock_reset(&gpus_[index], &error);
  outcome.driver_us = static_cast<uint32_t>((now_ns() - begin_ns) / 1000);
  if (outcome.code != device::kOk) outcome.text = error.text;
  return outcome;
}

Outcome GpuDriver::read(size_t index) {
  Outcome outcome;
  device::Error error;
  outcome.code = device::clock_read_sm_mhz(&gpus_[index], &outcome.now_mhz, &error);
  if (outcome.code != device::kOk) outcome.text = error.text;
  device::clock_throttle_reasons(&gpus_[index], &outcome.reasons, nullptr);
  device::clock_power_limit(&gpus_[index], &outcome.limit_mw, nullptr);
  return outcome;
}

}  // namespace powerccl::daemon
