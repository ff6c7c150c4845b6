// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu_reader.h"

#include <algorithm>

#include "abi/host_clock.h"
#include "agent/ticker.h"

namespace powerccl::agent {
namespace {

// How long a GPU may answer with errors before it is tried less often, and the pause from then on. At half, a GPU that
// is reset costs twice the calls; at double, up to two seconds of samples are missed when it answers again.
constexpr int64_t kRetryNs = 1'000'000'000;
// A read of the energy counter takes up to 4 ms on an H200 (docs/concepts/hardware.md). With intervals of 1 ms it is no
// gap: below 20 ms, the default interval, visits are judged as if it were 20 ms.
constexpr int64_t kShortestJudgedNs = 20'000'000;

}  // namespace

const char* const kMetricNames[device::kMetrics] = {
    "power_mw", "energy_uj", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "throttle_reasons", "utilization_pct"};

Periods plan_periods(const device::Sampling& sampling, const device::SampledGpu& gpu, unsigned gpus,
                     int64_t interval_ns) {
  const std::array<ReadPrice, device::kMetrics> prices = measure_prices(sampling, gpu);
  Periods periods{};
  for (unsigned m = 0; m < device::kMetrics; ++m)
    periods[m] = read_period_ns(static_cast<device::Metric>(m), prices[m], gpus, interval_ns);
  return periods;
}

void GpuReader::stagger(const Periods& periods, int64_t start_ns, unsigned gpus) {
  for (unsigned m = 0; m < device::kMetrics; ++m)
    due_ns_[m] = start_ns + interval_ns_ + (periods[m] - interval_ns_) * (index_ + 1) / gpus;
}

bool GpuReader::read(const device::Sampling& sampling, const device::SampledGpu& about, const Periods& periods,
                     int64_t deadline_ns, bool everything, PowerRow* row) {
  const int64_t start_ns = host_now_ns();
  row->time_ns = start_ns;
  // An energy figure repeated at a later time would look like a GPU that used nothing: -1 where it was not read.
  last_[device::kEnergyUj] = -1;
  bool any = false;
  for (unsigned m = 0; m < device::kMetrics; ++m) {
    if (!everything && !gap_ && deadline_ns < due_ns_[m]) continue;
    due_ns_[m] = next_due_ns(due_ns_[m], periods[m], deadline_ns);
    int64_t value = -1;
    const int code = device::sample(&sampling, &about, static_cast<device::Metric>(m), &value, &error);
    last_[m] = code == device::kOk ? value : -1;
    any = any || code == device::kOk;
    if (m == device::kPowerMw) row->time_ns = start_ns + (host_now_ns() - start_ns) / 2;
  }
  const int64_t took_ns = host_now_ns() - start_ns;
  if (any && took_ns > kLongestReadIntervals * std::max(interval_ns_, kShortestJudgedNs)) {
    device::fail(&error, device::kTooSlow, "one sample takes %lld ms, longer than %lld intervals",
                 static_cast<long long>(took_ns / 1'000'000), static_cast<long long>(kLongestReadIntervals));
    any = false;
  }
  gap_ = !any;
  if (!any) return false;
  failing_since_ns_ = 0;
  retry_ns_ = 0;
  row->gpu = index_;
  row->uuid = about.uuid;
  row->value = last_;
  return true;
}

bool GpuReader::failed(int64_t at_ns) {
  gap_ = true;
  if (failing_since_ns_ == 0) failing_since_ns_ = at_ns;
  if (at_ns - failing_since_ns_ < kRetryNs) return false;
  retry_ns_ = at_ns + kRetryNs;
  return true;
}

}  // namespace powerccl::agent
