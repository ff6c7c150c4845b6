// SPDX-License-Identifier: Apache-2.0
#include "bench/sampler.h"

#include <strings.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>

namespace powerccl::bench {
namespace {

// A counter that has moved by less than this many periods says little about power.
constexpr int kLeastPeriods = 2;
constexpr double kLeastSlackS = 1e-4;  // no reading is dated better than this
constexpr int kSlowEvery = 16;         // temperature and throttle reasons change slowly

std::optional<double> joules_at(const std::vector<EnergyUpdate>& updates, uint64_t ns) {
  const auto after = std::lower_bound(updates.begin(), updates.end(), ns,
                                      [](const EnergyUpdate& update, uint64_t time) { return update.time_ns < time; });
  if (after == updates.end() || (after == updates.begin() && after->time_ns != ns)) return std::nullopt;
  if (after->time_ns == ns) return after->joules;
  const auto before = after - 1;
  const double share =
      static_cast<double>(ns - before->time_ns) / static_cast<double>(after->time_ns - before->time_ns);
  return before->joules + share * (after->joules - before->joules);
}

}  // namespace

std::optional<SteadyPower> steady_power(const std::vector<EnergyUpdate>& updates, uint64_t from_ns, uint64_t to_ns) {
  // A straight line through the updates, each weighted by how exactly its moment is known. One reading that came late
  // (the sampler did not get a core in time) must not decide the slope.
  struct {
    double weight, time, joules, time_time, time_joules;
  } sum{};
  const EnergyUpdate* first = nullptr;
  const EnergyUpdate* last = nullptr;
  int seen = 0;
  for (const EnergyUpdate& update : updates) {
    if (update.time_ns < from_ns + update.slack_ns || update.time_ns + update.slack_ns > to_ns) continue;
    if (first == nullptr) first = &update;
    last = &update;
    ++seen;
    const double slack = std::max(static_cast<double>(update.slack_ns) * 1e-9, kLeastSlackS);
    const double weight = 1 / (slack * slack);
    const double time = static_cast<double>(update.time_ns - first->time_ns) * 1e-9;
    const double joules = update.joules - first->joules;
    sum.weight += weight;
    sum.time += weight * time;
    sum.joules += weight * joules;
    sum.time_time += weight * time * time;
    sum.time_joules += weight * time * joules;
  }
  if (seen < 2) return std::nullopt;
  const double spread = sum.time_time - sum.time * sum.time / sum.weight;
  const double covariance = sum.time_joules - sum.time * sum.joules / sum.weight;
  if (!(spread > 0)) return std::nullopt;
  const double seconds = static_cast<double>(last->time_ns - first->time_ns) * 1e-9;
  return SteadyPower{covariance / spread, seconds, seen - 1, 1 / std::sqrt(spread)};
}

std::optional<double> joules_between(const std::vector<EnergyUpdate>& updates, uint64_t from_ns, uint64_t to_ns) {
  if (updates.size() < 2 || to_ns < from_ns) return std::nullopt;
  const uint64_t distance_ns = (updates.back().time_ns - updates.front().time_ns) / (updates.size() - 1);
  if (to_ns - from_ns < 2 * distance_ns) return std::nullopt;
  const auto begin = joules_at(updates, from_ns);
  const auto end = joules_at(updates, to_ns);
  if (!begin || !end) return std::nullopt;
  return *end - *begin;
}

Sampler::Sampler(const Board& board, int pause_ms) : pause_ms_(pause_ms), gpus_(static_cast<size_t>(board.ranks())) {
  device::Error error;
  if (device::sampling_open(&sampling_, &error) != device::kOk) {
    reason_ = error.text;
    return;
  }
  for (size_t rank = 0; rank < gpus_.size(); ++rank) {
    Gpu& gpu = gpus_[rank];
    gpu.device = find(board.about[rank]);
    if (gpu.device == nullptr) {
      reason_ = "NVML does not know GPU " + std::string(board.about[rank].uuid);
      continue;
    }
    gpu.counts = read(gpu, device::kEnergyUj).has_value();
    gpu.reads_power = read(gpu, device::kPowerMw).has_value();
    if (!gpu.counts && !gpu.reads_power) reason_ = "NVML tells neither energy nor power of this GPU";
  }
}

Sampler::~Sampler() {
  stop();
  device::sampling_close(&sampling_);
}

// By UUID, else by PCI address, whose domain has more digits in NVML than in CUDA.
const device::SampledGpu* Sampler::find(const RankAbout& about) const {
  const std::string pci = about.pci;
  for (const auto& gpu : std::span(sampling_.gpu, sampling_.gpu_count)) {
    if (*about.uuid != '\0' && std::string(about.uuid) == gpu.uuid) return &gpu;
  }
  for (const auto& gpu : std::span(sampling_.gpu, sampling_.gpu_count)) {
    const size_t digits = std::strlen(gpu.pci);
    if (!pci.empty() && digits >= pci.size() && strcasecmp(gpu.pci + digits - pci.size(), about.pci) == 0) return &gpu;
  }
  return nullptr;
}

std::optional<int64_t> Sampler::read(const Gpu& gpu, device::Metric metric, device::Error* error) const {
  int64_t value = 0;
  const int code = device::sample(&sampling_, gpu.device, metric, &value, error);
  return code == device::kOk ? std::optional(value) : std::nullopt;
}

void Sampler::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  stop_ = false;
}

bool Sampler::counts() const {
  return std::all_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.counts; });
}

void Sampler::start() {
  if (sampling_.nvml != nullptr && !thread_.joinable()) thread_ = std::thread([this] { loop(); });
}

void Sampler::loop() {
  for (int turn = 0; !stop_; ++turn) {
    for (Gpu& gpu : gpus_) {
      if (gpu.device != nullptr) sample(gpu, turn % kSlowEvery == 0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
  }
}

void Sampler::sample_energy(Gpu& gpu) {
  // NVML calls stay outside the lock: an energy read takes milliseconds.
  const uint64_t asked_ns = monotonic_ns();
  device::Error error;
  const auto reading = read(gpu, gpu.counts ? device::kEnergyUj : device::kPowerMw, &error);
  const uint64_t now = monotonic_ns();
  const std::lock_guard lock(mutex_);
  if (!reading) {
    if (trouble_.empty()) trouble_ = error.text;
    return;
  }
  if (gpu.counts) {
    if (gpu.seen_ns != 0 && *reading != gpu.counter_uj) {
      const uint64_t slack = (now - gpu.seen_ns) / 2;
      gpu.updates.push_back({now - slack, slack, static_cast<double>(*reading) * 1e-6});
    }
    gpu.counter_uj = *reading;
  } else {
    const double watts = static_cast<double>(*reading) * 1e-3;
    if (gpu.seen_ns != 0)
      gpu.power_joules += (watts + gpu.last_watts) / 2 * static_cast<double>(now - gpu.seen_ns) * 1e-9;
    gpu.last_watts = watts;
    gpu.updates.push_back({now, 0, gpu.power_joules});
  }
  gpu.seen_ns = gpu.counts ? asked_ns : now;
}

void Sampler::sample(Gpu& gpu, bool slow_ones_too) {
  if (gpu.counts || gpu.reads_power) sample_energy(gpu);
  if (const auto mhz = read(gpu, device::kSmClockMhz)) {
    const std::lock_guard lock(mutex_);
    gpu.clocks.push_back({monotonic_ns(), static_cast<unsigned int>(*mhz)});
  }
  if (!slow_ones_too) return;
  const auto celsius = read(gpu, device::kTemperatureC), throttle = read(gpu, device::kThrottleReasons);
  const std::lock_guard lock(mutex_);
  if (celsius) gpu.temperature_c = static_cast<double>(*celsius);
  if (throttle) gpu.throttle_reasons = static_cast<unsigned long long>(*throttle);
}

Window Sampler::window(uint64_t from_ns, uint64_t to_ns) {
  Window result;
  const std::lock_guard lock(mutex_);
  double clock_sum = 0;
  size_t clocks = 0, measured = 0;
  for (const Gpu& gpu : gpus_) {
    for (const ClockSample& sample : gpu.clocks) {
      if (sample.time_ns < from_ns || sample.time_ns > to_ns) continue;
      clock_sum += sample.mhz;
      ++clocks;
      result.clock_min_mhz = std::min<double>(result.clock_min_mhz.value_or(sample.mhz), sample.mhz);
      result.clock_max_mhz = std::max<double>(result.clock_max_mhz.value_or(sample.mhz), sample.mhz);
    }
    if (gpu.temperature_c)
      result.temperature_c = std::max(result.temperature_c.value_or(0), gpu.temperature_c.value_or(0));
    if (gpu.throttle_reasons)
      result.throttle_reasons = result.throttle_reasons.value_or(0) | gpu.throttle_reasons.value_or(0);
    const auto power = steady_power(gpu.updates, from_ns, to_ns);
    if (!power || power->updates < kLeastPeriods) continue;
    ++measured;
    result.watts_all_gpus += power->watts;
    result.window_s += power->window_s;
    result.updates += power->updates;
    result.uncertainty_pct += 100 * power->uncertainty;
  }
  if (clocks > 0) result.clock_mean_mhz = clock_sum / static_cast<double>(clocks);
  if (measured < gpus_.size()) {
    result.reason = !reason_.empty() ? reason_ : trouble_;
    if (result.reason.empty()) {
      result.reason = "the energy counter moved less than three times inside the loop; --min-time makes it longer";
    }
    return result;
  }
  const auto gpus = static_cast<double>(gpus_.size());
  result.source = gpus_.front().counts ? "counter" : "power";
  result.watts_per_gpu = result.watts_all_gpus / gpus;
  result.window_s /= gpus;
  result.updates /= gpus;
  result.uncertainty_pct /= gpus;
  return result;
}

std::optional<double> Sampler::joules_all_gpus(uint64_t from_ns, uint64_t to_ns) {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const Gpu& gpu : gpus_) {
    const auto joules = joules_between(gpu.updates, from_ns, to_ns);
    if (!joules) return std::nullopt;
    sum += *joules;
  }
  return sum;
}

void Sampler::wait_past(uint64_t ns) {
  const uint64_t deadline = monotonic_ns() + 300'000'000;
  while (thread_.joinable() && monotonic_ns() < deadline) {
    {
      const std::lock_guard lock(mutex_);
      const bool all = std::all_of(gpus_.begin(), gpus_.end(), [&](const Gpu& gpu) {
        return !gpu.updates.empty() && gpu.updates.back().time_ns > ns;
      });
      if (all) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
  }
}

void Sampler::forget_before(uint64_t ns) {
  const std::lock_guard lock(mutex_);
  for (Gpu& gpu : gpus_) {
    std::erase_if(gpu.updates, [&](const EnergyUpdate& update) { return update.time_ns < ns; });
    std::erase_if(gpu.clocks, [&](const ClockSample& sample) { return sample.time_ns < ns; });
  }
}

std::optional<std::string> Sampler::nvlinks() const {
  std::string all, first;
  bool alike = true;
  for (const Gpu& gpu : gpus_) {
    const int active = gpu.device != nullptr ? device::active_nvlinks(&sampling_, gpu.device) : -1;
    if (active < 0) return std::nullopt;
    const std::string count = std::to_string(active);
    if (all.empty()) first = count;
    alike = alike && count == first;
    all += (all.empty() ? "" : " ") + count;
  }
  return alike ? first : all;
}

std::optional<int> Sampler::nvml_index(int rank) const {
  const auto* device = gpus_[static_cast<size_t>(rank)].device;
  return device != nullptr ? std::optional(static_cast<int>(device->index)) : std::nullopt;
}

std::string Sampler::trouble() {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

}  // namespace powerccl::bench
