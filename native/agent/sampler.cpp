// SPDX-License-Identifier: Apache-2.0
#include "agent/sampler.h"

#include "agent/clock.h"
#include "agent/log.h"

namespace powerccl::agent {
namespace {

constexpr const char* kMetricNames[device::kMetrics] = {
    "power_mw", "energy_uj", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "throttle_reasons", "utilization_pct"};
constexpr int kFailedTicksToGiveUp = 50;
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

Sampler::Sampler(const device::Sampling& sampling, const std::string& nvml_error, int64_t interval_ns)
    : sampling_(sampling), nvml_error_(nvml_error), interval_ns_(interval_ns) {
  for (uint32_t i = 0; i < sampling.gpu_count; ++i) {
    gpus_.emplace_back();
    gpus_.back().about = &sampling.gpu[i];
    gpus_.back().last.fill(-1);
  }
}

Sampler::~Sampler() {
  stop();
}

std::string Sampler::comments() const {
  std::string text = common_comments(interval_ns_);
  if (!nvml_error_.empty()) return text + comment("nvml", nvml_error_) + comment("gpu_count", "0");
  text += comment("driver", sampling_.driver);
  text += comment("nvml", sampling_.nvml_version);
  text += comment("emulated", sampling_.emulated ? "1" : "0");
  text += comment("gpu_count", std::to_string(gpus_.size()));
  if (sampling_.gpus_refused) text += comment("gpus_refused", std::to_string(sampling_.gpus_refused));
  for (const Gpu& gpu : gpus_) {
    std::string key = "gpu" + std::to_string(gpu.about->index);
    text += comment(key + "_name", gpu.about->name);
    text += comment(key + "_uuid", gpu.about->uuid);
    text += comment(key + "_pci", gpu.about->pci);
    text += comment(key + "_power", gpu.about->power_is_instant ? "instant" : "usage");
  }
  for (unsigned m = 0; m < device::kMetrics; ++m)
    text += comment(std::string("read_every_ns_") + kMetricNames[m], std::to_string(period_ns_[m]));
  return text;
}

// Dear metrics of different GPUs fall on different ticks.
void Sampler::plan(int64_t start_ns) {
  std::array<ReadPrice, device::kMetrics> prices{};
  if (!gpus_.empty()) prices = measure_prices(sampling_, *gpus_.front().about);
  auto count = static_cast<unsigned>(gpus_.size());
  for (unsigned m = 0; m < device::kMetrics; ++m) {
    period_ns_[m] = read_period_ns(static_cast<device::Metric>(m), prices[m], count, interval_ns_);
    for (unsigned g = 0; g < count; ++g)
      gpus_[g].due_ns[m] = start_ns + interval_ns_ + (period_ns_[m] - interval_ns_) * (g + 1) / count;
  }
}

int Sampler::start(const std::string& path) {
  plan(now_ns());
  if (int number = file_.open(path, comments() + kPowerColumns)) {
    file_failed(number);
    return number;
  }
  if (gpus_.empty()) return 0;
  const int64_t start_ns = now_ns();
  int number = 0;
  for (Gpu& gpu : gpus_)
    if (number == 0) number = sample_gpu(gpu, start_ns, true);
  if (number == 0) number = file_.flush();
  if (number == 0)
    number = ticker_.start(start_ns, interval_ns_, kTimerSlackNs,
                           [this](int64_t deadline_ns, bool last_one) { return tick(deadline_ns, last_one); });
  if (number != 0) file_failed(number);
  return number;
}

void Sampler::ask_to_stop() {
  ticker_.ask_to_stop();
}

void Sampler::stop() {
  ticker_.stop();
}

bool Sampler::tick(int64_t deadline_ns, bool last_one) {
  int number = 0;
  for (Gpu& gpu : gpus_)
    if (number == 0) number = sample_gpu(gpu, deadline_ns, last_one);
  if (number == 0 && (last_one || file_.due(now_ns() + interval_ns_))) number = file_.flush();
  if (number != 0) file_failed(number);
  return number == 0;
}

int Sampler::sample_gpu(Gpu& gpu, int64_t deadline_ns, bool everything) {
  if (gpu.given_up) return 0;
  PowerRow row;
  row.gpu = gpu.about->index;
  row.uuid = gpu.about->uuid;
  row.time_ns = now_ns();
  // An energy figure repeated at a later time would look like a GPU that used nothing: -1 where it was not read.
  gpu.last[device::kEnergyUj] = -1;
  bool any = false;
  device::Error error;
  for (unsigned m = 0; m < device::kMetrics; ++m) {
    if (!everything && deadline_ns < gpu.due_ns[m]) continue;
    while (gpu.due_ns[m] <= deadline_ns) gpu.due_ns[m] += period_ns_[m];
    int64_t value = -1;
    int code = device::sample(&sampling_, gpu.about, static_cast<device::Metric>(m), &value, &error);
    gpu.last[m] = code == device::kOk ? value : -1;
    any = any || code == device::kOk;
  }
  if (any) {
    gpu.failed_ticks = 0;
    row.value = gpu.last;
    return append_power_row(&file_, row);
  }
  if (++gpu.failed_ticks < kFailedTicksToGiveUp) return 0;
  gpu.given_up = true;
  say("GPU %u is not sampled any more: %s%s", gpu.about->index, error.text, hint_line(error.code));
  return 0;
}

void Sampler::file_failed(int number) {
  file_.say_failed(number, "Sampling has ended; clocks are still guarded");
}

}  // namespace powerccl::agent
