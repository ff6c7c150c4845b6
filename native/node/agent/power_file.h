// SPDX-License-Identifier: Apache-2.0
// The rows of <run folder>/power-<host>.csv.
#pragma once
#include <array>
#include <cstdint>

#include "agent/sample_file.h"
#include "device/nvml_sample.h"

namespace powerccl::agent {

// What a node's GPUs said at one moment. A metric that could not be read is -1.
struct PowerRow {
  int64_t time_ns = 0;  // CLOCK_MONOTONIC, the middle of the power reading
  uint32_t gpu = 0;
  const char* uuid = "";
  std::array<int64_t, device::kMetrics> value{};
};

extern const char* const kPowerColumns;  // the header line

int append_power_row(SampleFile* file, const PowerRow& row);

}  // namespace powerccl::agent
