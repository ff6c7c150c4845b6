// SPDX-License-Identifier: Apache-2.0
#include "agent/cadence.h"

#include <algorithm>

#include "abi/host_clock.h"

namespace powerccl::agent {
namespace {

constexpr double kCheapCpuShare = 0.0005;          // of one core, for one metric over all GPUs: not worth thinning out
constexpr double kCheapWallShare = 0.05;           // of the interval
constexpr double kCpuShare = 0.002;                // what a dear metric may take of one core
constexpr double kWallShare = 0.1;                 // and of the sampler's time
constexpr int64_t kCounterPeriodNs = 100'000'000;  // of current energy counters (docs/concepts/hardware.md)
constexpr int kReads = 3;

}  // namespace

int64_t read_period_ns(device::Metric metric, ReadPrice price, unsigned gpus, int64_t interval_ns) {
  if (metric == device::kPowerMw || metric == device::kSmClockMhz) return interval_ns;
  double cpu_ns = static_cast<double>(price.cpu_ns) * gpus;
  double wall_ns = static_cast<double>(price.wall_ns) * gpus;
  double interval = static_cast<double>(interval_ns);
  if (cpu_ns <= kCheapCpuShare * interval && wall_ns <= kCheapWallShare * interval) return interval_ns;
  auto affordable = static_cast<int64_t>(std::max(cpu_ns / kCpuShare, wall_ns / kWallShare));
  if (affordable <= interval_ns) return interval_ns;  // some counters move every 20 ms: read them as often as that
  int64_t period = std::max(affordable, kCounterPeriodNs);
  return (period + interval_ns - 1) / interval_ns * interval_ns;
}

std::array<ReadPrice, device::kMetrics> measure_prices(const device::Sampling& sampling,
                                                       const device::SampledGpu& gpu) {
  std::array<ReadPrice, device::kMetrics> prices{};
  for (unsigned m = 0; m < device::kMetrics; ++m) {
    auto metric = static_cast<device::Metric>(m);
    int64_t value = 0;
    if (device::sample(&sampling, &gpu, metric, &value, nullptr) != device::kOk) continue;
    ReadPrice least{INT64_MAX, INT64_MAX};
    for (int i = 0; i < kReads; ++i) {
      int64_t cpu = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
      int64_t wall = host_now_ns();
      device::sample(&sampling, &gpu, metric, &value, nullptr);
      least.wall_ns = std::min(least.wall_ns, host_now_ns() - wall);
      least.cpu_ns = std::min(least.cpu_ns, read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu);
    }
    prices[m] = least;
  }
  return prices;
}

}  // namespace powerccl::agent
