// SPDX-License-Identifier: Apache-2.0
#include "agent/ticker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

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

StopEvent::~StopEvent() {
  if (fd_ >= 0) close(fd_);
}

int StopEvent::open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd_ < 0 ? errno : 0;
}

void StopEvent::ask() {
  const uint64_t one = 1;
  while (fd_ >= 0 && write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool StopEvent::wait(int64_t wait_ns) const {
  const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
  pollfd stopping{fd_, POLLIN, 0};
  return ppoll(&stopping, 1, &wait, nullptr) > 0;
}

void run_ticks(const StopEvent& stop, int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, const Tick& tick) {
  prctl(PR_SET_TIMERSLACK, slack_ns);
  int64_t deadline_ns = start_ns;
  for (;;) {
    deadline_ns += interval_ns;
    const int64_t late_ns = host_now_ns() - deadline_ns;
    if (late_ns > 0) deadline_ns += late_ns / interval_ns * interval_ns;
    const bool last_one = stop.wait(std::max<int64_t>(-late_ns, 0));
    if (!tick(deadline_ns, last_one) || last_one) return;
  }
}

int64_t next_due_ns(int64_t due_ns, int64_t period_ns, int64_t now_ns) {
  return due_ns > now_ns ? due_ns : due_ns + ((now_ns - due_ns) / period_ns + 1) * period_ns;
}

Ticker::~Ticker() {
  end();
}

void Ticker::end() {
  if (!thread_.joinable()) return;
  ask_to_stop();
  thread_.join();
}

int Ticker::start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick) {
  if (const int number = stop_.open(); number != 0) return number;
  std::promise<void> end;
  ended_ = end.get_future();
  try {
    thread_ =
        std::thread([this, start_ns, interval_ns, slack_ns, tick = std::move(tick), end = std::move(end)]() mutable {
          run_ticks(stop_, start_ns, interval_ns, slack_ns, tick);
          end.set_value();
        });
  } catch (const std::system_error& error) {  // a limit on processes
    return error.code().value();
  }
  return 0;
}

void Ticker::ask_to_stop() {
  stop_.ask();
}

bool Ticker::stop(int64_t patience_ns) {
  if (!thread_.joinable()) return true;
  ask_to_stop();
  if (ended_.wait_for(std::chrono::nanoseconds(patience_ns)) != std::future_status::ready) return false;
  thread_.join();
  return true;
}

}  // namespace powerccl::agent
