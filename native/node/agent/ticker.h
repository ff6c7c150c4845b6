// SPDX-License-Identifier: Apache-2.0
// Does something at fixed moments until it is stopped, and how often each metric is worth its price.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <thread>

#include "device/nvml_sample.h"

namespace powerccl::agent {

// On an H200 one read of the total-energy counter takes 2.4 to 4 ms, two thousand times a power reading. Its value does
// not change for 100 ms (docs/concepts/hardware.md). On an emulated GPU everything is cheap. So prices are measured at
// start, on the first GPU. Expensive metrics are read less often, spread over the GPUs so that no tick pays for all of
// them.

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

// Tells any number of threads to stop, once.
class StopEvent {
 public:
  StopEvent() = default;
  ~StopEvent();
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  int open();  // 0 or an errno
  void ask();
  // Waits until then, or until asked; true if asked.
  bool wait(int64_t wait_ns) const;

 private:
  int fd_ = -1;
};

// Called at each deadline, and once more (`last_one`) when asked to stop. False ends the series.
using Tick = std::function<bool(int64_t deadline_ns, bool last_one)>;

// Runs a series on this thread. The first deadline is `start_ns + interval_ns`, the next one each `interval_ns` later.
// A series that is late by whole intervals skips them: no burst of ticks follows a thread that the kernel held back.
// `slack_ns`: how late the kernel may wake the thread to save a wake-up.
void run_ticks(const StopEvent& stop, int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, const Tick& tick);

// The first of the moments `due_ns + n * period_ns` after `now_ns`.
int64_t next_due_ns(int64_t due_ns, int64_t period_ns, int64_t now_ns);

// A series on a thread of its own.
class Ticker {
 public:
  Ticker() = default;
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Returns 0 or an errno.
  int start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick);
  void ask_to_stop();
  // The same, and waits for the last tick's end. False: it did not end within `patience_ns`, and the thread uses this
  // object still.
  bool stop(int64_t patience_ns);
  // The same, and waits however long it takes.
  void end();

 private:
  StopEvent stop_;
  std::thread thread_;
  std::future<void> ended_;
};

}  // namespace powerccl::agent
