// SPDX-License-Identifier: Apache-2.0
// How often each metric is worth its price.
//
// On an H200 one read of the total-energy counter takes 2.4 to 4 ms, two thousand times a power reading. Its value does
// not change for 100 ms (docs/concepts/hardware.md). On an emulated GPU everything is cheap. So prices are measured at
// start, on the first GPU. Expensive metrics are read less often, spread over the GPUs so that no tick pays for all of
// them.
#pragma once
#include <array>
#include <cstdint>

#include "device/nvml_sample.h"

namespace powerccl::agent {

// A gap is what is longer than three sampling periods (docs/reference/run-folder.md). A read that takes longer than
// that is a gap as well: its value may be of any moment in it.
inline constexpr int64_t kLongestReadIntervals = 3;
// How long the end waits for a thread that hangs in a read. The job has ended by then and its user waits. At half, a
// loaded node may lose its last rows; at double, the user waits longer for nothing.
inline constexpr int64_t kStopPatienceNs = 1'000'000'000;

struct ReadPrice {
  int64_t cpu_ns = 0;  // of this thread, one read
  int64_t wall_ns = 0;
};

// The time between two reads of a metric on one GPU: the interval itself when cheap, else a multiple of it. Power and
// the SM clock are read at every tick whatever they cost: they are what the samples are for.
int64_t read_period_ns(device::Metric metric, ReadPrice price, unsigned gpus, int64_t interval_ns);

// Prices of all metrics on `gpu`: the least of a few reads, after one that may set things up.
std::array<ReadPrice, device::kMetrics> measure_prices(const device::Sampling& sampling, const device::SampledGpu& gpu);

}  // namespace powerccl::agent
