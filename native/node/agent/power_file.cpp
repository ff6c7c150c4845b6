// SPDX-License-Identifier: Apache-2.0
#include "agent/power_file.h"

#include <cinttypes>
#include <cstdio>
#include <string>

namespace powerccl::agent {

const char* const kPowerColumns =
    "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct\n";

int append_power_row(SampleFile* file, const PowerRow& row) {
  char line[320];
  const auto& v = row.value;
  std::string throttle = "-1";
  if (v[device::kThrottleReasons] >= 0) {
    char hex[24];
    std::snprintf(hex, sizeof hex, "0x%" PRIx64, static_cast<uint64_t>(v[device::kThrottleReasons]));
    throttle = hex;
  }
  int length =
      std::snprintf(line, sizeof line,
                    "%" PRId64 ",%u,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%s,%" PRId64 "\n",
                    row.time_ns, row.gpu, row.uuid, v[device::kPowerMw], v[device::kEnergyUj], v[device::kSmClockMhz],
                    v[device::kMemClockMhz], v[device::kTemperatureC], throttle.c_str(), v[device::kUtilizationPct]);
  return file->append(row.time_ns, line, static_cast<size_t>(length));
}

}  // namespace powerccl::agent
