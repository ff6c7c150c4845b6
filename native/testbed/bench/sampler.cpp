// SPDX-License-Identifier: Apache-2.0
#include "bench/sampler.h"

#include <algorithm>
#include <chrono>
#include <cmath>

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
  // A straight line through the updates, each weighing by how exactly its moment is known: one reading that came late
  // (the sampler did not get a core in time) must not decide about the slope.
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
  nvml_ = NvmlApi::load(reason_);
  if (nvml_ == nullptr) return;
  for (size_t rank = 0; rank < gpus_.size(); ++rank) {
    Gpu& gpu = gpus_[rank];
    gpu.device = nvml_->find(board.about[rank].uuid, board.about[rank].pci);
    if (gpu.device == nullptr) {
      reason_ = "NVML does not know GPU " + std::string(board.about[rank].uuid);
      continue;
    }
    unsigned long long energy = 0;
    unsigned int power = 0;
    gpu.counts = nvml_->total_energy != nullptr && nvml_->total_energy(gpu.device, &energy) == NVML_SUCCESS;
    gpu.reads_power = nvml_->power_usage != nullptr && nvml_->power_usage(gpu.device, &power) == NVML_SUCCESS;
    if (!gpu.counts && !gpu.reads_power) reason_ = "NVML tells neither energy nor power of this GPU";
  }
}

Sampler::~Sampler() {
  stop();
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
  if (nvml_ != nullptr && !thread_.joinable()) thread_ = std::thread([this] { loop(); });
}

void Sampler::loop() {
  for (int turn = 0; !stop_; ++turn) {
    for (Gpu& gpu : gpus_) {
      if (gpu.device != nullptr) sample(gpu, turn % kSlowEvery == 0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
  }
}

void Sampler::note(nvmlReturn_t result, const char* call) {
  if (result == NVML_SUCCESS) return;
  const std::lock_guard lock(mutex_);
  if (trouble_.empty()) trouble_ = std::string(call) + ": " + nvml_->text(result);
}

void Sampler::sample_energy(Gpu& gpu) {
  // NVML calls stay outside the lock: an energy read takes milliseconds.
  const uint64_t asked_ns = monotonic_ns();
  unsigned long long energy_mj = 0;
  unsigned int power_mw = 0;
  const nvmlReturn_t result =
      gpu.counts ? nvml_->total_energy(gpu.device, &energy_mj) : nvml_->power_usage(gpu.device, &power_mw);
  note(result, gpu.counts ? "energy counter" : "power reading");
  if (result != NVML_SUCCESS) return;
  const uint64_t now = monotonic_ns();
  const std::lock_guard lock(mutex_);
  if (gpu.counts) {
    if (gpu.seen_ns != 0 && energy_mj != gpu.counter_mj) {
      const uint64_t slack = (now - gpu.seen_ns) / 2;
      gpu.updates.push_back({now - slack, slack, static_cast<double>(energy_mj) * 1e-3});
    }
    gpu.counter_mj = energy_mj;
  } else {
    const double watts = power_mw * 1e-3;
    if (gpu.seen_ns != 0)
      gpu.power_joules += (watts + gpu.last_watts) / 2 * static_cast<double>(now - gpu.seen_ns) * 1e-9;
    gpu.last_watts = watts;
    gpu.updates.push_back({now, 0, gpu.power_joules});
  }
  gpu.seen_ns = gpu.counts ? asked_ns : now;
}

void Sampler::sample(Gpu& gpu, bool slow_ones_too) {
  if (gpu.counts || gpu.reads_power) sample_energy(gpu);
  unsigned int mhz = 0;
  if (nvml_->clock_info != nullptr && nvml_->clock_info(gpu.device, NVML_CLOCK_SM, &mhz) == NVML_SUCCESS) {
    const std::lock_guard lock(mutex_);
    gpu.clocks.push_back({monotonic_ns(), mhz});
  }
  if (!slow_ones_too) return;
  unsigned int celsius = 0;
  unsigned long long throttle = 0;
  const bool warm =
      nvml_->temperature != nullptr && nvml_->temperature(gpu.device, NVML_TEMPERATURE_GPU, &celsius) == NVML_SUCCESS;
  const bool throttled =
      nvml_->throttle_reasons != nullptr && nvml_->throttle_reasons(gpu.device, &throttle) == NVML_SUCCESS;
  const std::lock_guard lock(mutex_);
  if (warm) gpu.temperature_c = celsius;
  gpu.throttle_known = gpu.throttle_known || throttled;
  gpu.throttle = throttle;
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
    if (gpu.throttle_known) result.throttle_reasons = result.throttle_reasons.value_or(0) | gpu.throttle;
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

std::string Sampler::driver() const {
  char text[128] = "";
  if (nvml_ != nullptr && nvml_->driver_version != nullptr) nvml_->driver_version(text, sizeof text);
  return text;
}

std::optional<std::string> Sampler::nvlinks() const {
  if (nvml_ == nullptr || nvml_->nvlink_state == nullptr) return std::nullopt;
  std::string all, first;
  bool alike = true;
  for (const Gpu& gpu : gpus_) {
    if (gpu.device == nullptr) return std::nullopt;
    int active = 0;
    for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
      nvmlEnableState_t state = NVML_FEATURE_DISABLED;
      const nvmlReturn_t result = nvml_->nvlink_state(gpu.device, link, &state);
      if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_INVALID_ARGUMENT) break;  // no more of them
      if (result != NVML_SUCCESS) return std::nullopt;
      if (state == NVML_FEATURE_ENABLED) ++active;
    }
    const std::string count = std::to_string(active);
    if (all.empty()) first = count;
    alike = alike && count == first;
    all += (all.empty() ? "" : " ") + count;
  }
  return alike ? first : all;
}

std::string Sampler::emulated_platform() const {
  char text[128] = "";
  if (nvml_ != nullptr && nvml_->emulated_platform != nullptr) nvml_->emulated_platform(text, sizeof text);
  return text;
}

std::optional<int> Sampler::nvml_index(int rank) const {
  unsigned int index = 0;
  const nvmlDevice_t device = gpus_[static_cast<size_t>(rank)].device;
  if (device == nullptr || nvml_->device_get_index == nullptr ||
      nvml_->device_get_index(device, &index) != NVML_SUCCESS) {
    return std::nullopt;
  }
  return static_cast<int>(index);
}

std::string Sampler::trouble() {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

}  // namespace powerccl::bench
