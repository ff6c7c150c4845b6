// SPDX-License-Identifier: Apache-2.0
// Reads one GPU: which metrics are due, of what moment the values are, and what to do while it answers with errors.
//
// The row's time is the middle of the power reading, so it is off by half of that call at most. A visit longer than
// three intervals has no row. Its values may be of any moment in it, and the report counts such a stretch as a gap
// anyway.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "agent/cadence.h"
#include "agent/sample_file.h"
#include "device/nvml_sample.h"

namespace powerccl::agent {

extern const char* const kMetricNames[device::kMetrics];

using Periods = std::array<int64_t, device::kMetrics>;

// The time between two reads of each metric on each of `gpus` GPUs, from prices measured on `gpu`.
Periods plan_periods(const device::Sampling& sampling, const device::SampledGpu& gpu, unsigned gpus,
                     int64_t interval_ns);

// Used by one thread at a time.
class GpuReader {
 public:
  GpuReader(uint32_t index, int64_t interval_ns) : index_(index), interval_ns_(interval_ns) {}

  uint32_t index() const { return index_; }
  // False while a GPU that answers with errors is not read until its next try.
  bool due(int64_t at_ns) const { return at_ns >= retry_ns_; }

  // Reads the metrics that are due. `everything`, and a read after a gap: reads all of them, so that the energy counter
  // is known at both ends of the gap. True with `row` filled; false: this visit has no row.
  bool read(const device::Sampling& sampling, const device::SampledGpu& about, const Periods& periods,
            int64_t deadline_ns, bool everything, PowerRow* row);
  // Metrics that cost more than others fall on different ticks on different GPUs.
  void stagger(const Periods& periods, int64_t start_ns, unsigned gpus);
  // To be called after a visit without a row. After a second of them the GPU is tried once a second: then true.
  bool failed(int64_t at_ns);

  device::Error error;  // of the last call that failed

 private:
  uint32_t index_;
  int64_t interval_ns_;
  std::array<int64_t, device::kMetrics> last_{};    // -1: not known
  std::array<int64_t, device::kMetrics> due_ns_{};  // next read
  int64_t failing_since_ns_ = 0;                    // 0: the last visit had a row
  int64_t retry_ns_ = 0;
  bool gap_ = true;  // no row since the start, or since a visit without one
};

}  // namespace powerccl::agent
