// SPDX-License-Identifier: Apache-2.0
#include "agent/check.h"

#include <cstdio>

#include "device/nvml_clock.h"
#include "device/nvml_sample.h"

namespace powerccl::agent {
namespace {

std::string quoted(const char* text) {
  std::string out = "\"";
  for (; *text; ++text) {
    auto byte = static_cast<unsigned char>(*text);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += *text;
    } else if (byte < 0x20 || byte >= 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += *text;
    }
  }
  return out + '"';
}

std::string member(const char* key, const std::string& value) {
  return quoted(key) + ": " + value;
}
const char* boolean(bool value) {
  return value ? "true" : "false";
}

std::string error_json(const device::Error& error) {
  return "{" + member("code", std::to_string(error.code)) + ", " + member("text", quoted(error.text)) + ", " +
         member("hint", quoted(device::hint(error.code))) + "}";
}

// The reading, or null and the reason under errors.
std::string reading(const device::Sampling& sampling, const device::SampledGpu& gpu, device::Metric metric,
                    const char* name, std::string* errors) {
  int64_t value = 0;
  device::Error error;
  if (device::sample(&sampling, &gpu, metric, &value, &error) == device::kOk) return std::to_string(value);
  *errors += (errors->empty() ? "" : ", ") + member(name, quoted(error.text));
  return "null";
}

std::string gpu_json(const device::Sampling& sampling, const device::SampledGpu& gpu, bool* may_set) {
  std::string errors;
  auto read = [&](device::Metric metric, const char* name) {
    return member(name, reading(sampling, gpu, metric, name, &errors));
  };
  std::string json = "{" + member("index", std::to_string(gpu.index)) + ", " + member("name", quoted(gpu.name)) + ", " +
                     member("uuid", quoted(gpu.uuid)) + ", " + member("pci", quoted(gpu.pci)) + ", " +
                     member("power_source", quoted(gpu.power_is_instant ? "instant" : "usage")) + ", " +
                     read(device::kPowerMw, "power_mw") + ", " + read(device::kEnergyUj, "energy_uj") + ", " +
                     read(device::kSmClockMhz, "sm_clock_mhz") + ", " + read(device::kMemClockMhz, "mem_clock_mhz") +
                     ", " + read(device::kTemperatureC, "temperature_c") + ", " +
                     read(device::kThrottleReasons, "throttle_reasons") + ", " +
                     read(device::kUtilizationPct, "utilization_pct") + ", ";
  device::ClockDevice clock;
  device::Error refusal;
  uint32_t max_mhz = 0;
  bool open = device::clock_open(&clock, *gpu.uuid ? gpu.uuid : gpu.pci, &refusal) == device::kOk;
  bool max_known = open && device::clock_max_sm_mhz(&clock, &max_mhz, nullptr) == device::kOk;
  bool may = open && device::clock_may_lock(&clock, &refusal);
  if (open) device::clock_close(&clock);
  *may_set = *may_set && may;
  json += member("max_sm_clock_mhz", max_known ? std::to_string(max_mhz) : "null") + ", " +
          member("may_set_clocks", boolean(may)) + ", ";
  if (!may) json += member("may_set_clocks_error", error_json(refusal)) + ", ";
  return json + member("errors", "{" + errors + "}") + "}";
}

}  // namespace

std::string check_json() {
  std::string json = "{" + member("schema", "1") + ", ";
  device::Sampling sampling;
  device::Error error;
  if (device::sampling_open(&sampling, &error) != device::kOk)
    return json + member("nvml", "null") + ", " + member("error", error_json(error)) + ", " +
           member("emulated", "false") + ", " + member("gpu_count", "0") + ", " + member("may_set_clocks", "false") +
           ", " + member("gpus", "[]") + "}\n";
  std::string gpus;
  bool may_set = sampling.gpu_count > 0;
  for (uint32_t i = 0; i < sampling.gpu_count; ++i)
    gpus += (i ? ", " : "") + gpu_json(sampling, sampling.gpu[i], &may_set);
  json += member("nvml", quoted(sampling.nvml_version)) + ", " + member("driver", quoted(sampling.driver)) + ", " +
          member("emulated", boolean(sampling.emulated)) + ", " +
          member("gpu_count", std::to_string(sampling.gpu_count)) + ", " +
          member("gpus_refused", std::to_string(sampling.gpus_refused)) + ", " +
          member("may_set_clocks", boolean(may_set)) + ", " + member("gpus", "[" + gpus + "]") + "}\n";
  device::sampling_close(&sampling);
  return json;
}

}  // namespace powerccl::agent
