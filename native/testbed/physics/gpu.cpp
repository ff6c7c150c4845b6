// SPDX-License-Identifier: Apache-2.0
#include "physics/gpu.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "physics/platform.h"

namespace powerccl::physics {
namespace {

const char* name_of(const Truth::Operation& operation) {
  return operation.pattern < kPatterns ? pattern_name(static_cast<Pattern>(operation.pattern)) : "unknown";
}

}  // namespace

Truth::Operation Truth::operation(uint8_t pattern, double bytes) {
  return {pattern, bytes >= 1 ? std::bit_floor(static_cast<uint64_t>(bytes)) : 0};
}

void Truth::spent(const State& state, int64_t ns, double watts) {
  Sum& sum = states_[state];
  sum.ns += ns;
  sum.microjoules += watts * 1e-3 * static_cast<double>(ns);
}

bool Truth::write(const std::string& path, const std::string& platform, std::string& error) const {
  FILE* file = fopen(path.c_str(), "we");
  if (file == nullptr) {
    error = path + ": " + strerror(errno);
    return false;
  }
  fprintf(file, "{\"emulated\": \"%s\",\n \"states\": [", platform.c_str());
  const char* between = "\n";
  for (const auto& [state, sum] : states_) {
    fprintf(file, "%s  {\"gpu\": %u, \"asleep\": %s, \"computing\": %s, \"running\": [", between, state.gpu,
            state.asleep ? "true" : "false", state.computing ? "true" : "false");
    const char* comma = "";
    for (const Operation& operation : state.running) {
      fprintf(file, "%s{\"pattern\": \"%s\", \"size_class_bytes\": %llu}", comma, name_of(operation),
              static_cast<unsigned long long>(operation.size_class_bytes));
      comma = ", ";
    }
    fprintf(file, "], \"ns\": %lld, \"joules\": %.6f}", static_cast<long long>(sum.ns), sum.microjoules * 1e-6);
    between = ",\n";
  }
  fprintf(file, "],\n \"operations\": [");
  between = "\n";
  for (const auto& [key, count] : operations_) {
    fprintf(file, "%s  {\"gpu\": %u, \"pattern\": \"%s\", \"size_class_bytes\": %llu, \"count\": %llu}", between,
            key.first, name_of(key.second), static_cast<unsigned long long>(key.second.size_class_bytes),
            static_cast<unsigned long long>(count));
    between = ",\n";
  }
  fprintf(file, "]}\n");
  const bool failed = ferror(file) != 0;
  if (fclose(file) == 0 && !failed) return true;
  error = path + ": " + strerror(errno);
  return false;
}

namespace {

constexpr double kNsPerMs = 1e6;
constexpr uint32_t kThrottleIdle = 0x1;      // nvmlClocksEventReasonGpuIdle
constexpr uint32_t kThrottlePowerCap = 0x4;  // nvmlClocksEventReasonSwPowerCap

int64_t period_ns(const Platform& platform) {
  return std::max<int64_t>(1, std::llround(platform.refresh_ms * kNsPerMs));
}

}  // namespace

Gpu::Gpu(const Platform& platform, int64_t start, uint32_t index)
    : platform_(&platform),
      draws_(platform.draws(index)),
      settled_(start),
      idle_since_(start),
      refresh_(start - start % period_ns(platform)),
      clock_mhz_(platform.clock_idle_mhz),
      cap_mhz_(platform.clock_max_mhz),
      average_w_(platform.idle_p8_w),
      slow_w_(platform.idle_p8_w),
      temperature_c_(platform.start_temperature_c) {
  update();
  // As if it had idled before: the first readings are those of an idle GPU, not of none.
  energy_.latched = -energy_.rate * static_cast<double>(start - refresh_);
  energy_.latched_before = energy_.latched - energy_.rate * static_cast<double>(period_ns(platform));
}

double Gpu::compute_rate() const {
  double slows = 0;
  for (const Communication& each : communications_) slows = std::max(slows, each.slows);
  return std::max(0.01, 1 - (1 - platform_->overlap_compute_rate) * slows);  // it gets on, whatever runs beside it
}

void Gpu::communication_started(const Communication& communication) {
  communications_.insert(communication);
  if (truth_ != nullptr) truth_->began(state_.gpu, communication.as);
}

void Gpu::communication_stopped(const Communication& communication) {
  auto entry = communications_.find(communication);
  if (entry != communications_.end()) communications_.erase(entry);
}

void Gpu::keep_truth(Truth& truth, uint32_t index) {
  truth_ = &truth;
  state_.gpu = index;
  note_state();
}

void Gpu::note_state() {
  state_.asleep = asleep_;
  state_.computing = computing();
  state_.running.clear();
  for (const Communication& each : communications_) state_.running.push_back(each.as);
  std::sort(state_.running.begin(), state_.running.end());
}

void Gpu::wake() {
  asleep_ = false;
  idle_since_ = settled_;
}

void Gpu::lock(uint32_t min_mhz, uint32_t max_mhz) {
  // While the clock is locked the governor does not limit it and does not wind up. Computation then starts where its
  // power fits, not at the maximum. This is how communicating at a low clock also calms the computation behind it.
  if (max_mhz == 0 && locked_max_mhz_ != 0) cap_mhz_ = clock_for(platform_->governor_start_w);
  locked_min_mhz_ = min_mhz;
  locked_max_mhz_ = max_mhz;
}

double Gpu::watts_at(double clock_mhz, bool computes) const {
  const Platform& p = *platform_;
  const double fv2 = p.fv2(clock_mhz);
  const double leakage_w = p.leakage_w_per_kv * p.volts(clock_mhz) * (temperature_c_ - p.leakage_reference_c);
  double watts = p.static_w + leakage_w + p.tree_w * fv2;
  if (computes) {
    const double share = 1.0 / std::max(1u, kernels_);
    const Activity activity = {activities_.compute * share, activities_.memory * share};
    watts += p.kernel_w(kernels_ > 0 ? activity : p.kernel, clock_mhz);
  }
  if (!communications_.empty()) {
    const Communication& largest = *communications_.rbegin();
    watts += p.communication_w(largest.bytes, clock_mhz) * largest.power;
  }
  return std::max(draws_ * watts, p.idle_p8_w);
}

double Gpu::clock_for(double watts) const {
  const Platform& p = *platform_;
  double clock_mhz = p.clock_max_mhz;
  while (clock_mhz > p.clock_min_mhz && watts_at(clock_mhz, true) > watts) clock_mhz -= p.clock_step_mhz;
  return clock_mhz;
}

double Gpu::target_mhz() const {
  const Platform& p = *platform_;
  if (asleep_) return p.snap_mhz(std::max(p.clock_idle_mhz, locked_min_mhz_));
  double target = p.clock_max_mhz;
  if (locked_max_mhz_ != 0) target = std::min<double>(target, locked_max_mhz_);
  target = std::min(target, cap_mhz_);
  // The peak limiter acts within microseconds on what would be drawn; the governor on what has been drawn on average.
  if (p.peak_limit_w > 0 && computing()) target = std::min(target, clock_for(p.peak_limit_w));
  return p.snap_mhz(target);
}

void Gpu::roll(Integral& integral, int64_t from, int64_t to) const {
  const int64_t period = period_ns(*platform_);
  const int64_t boundary = to - to % period;
  auto at = [&](int64_t time) { return integral.value + integral.rate * static_cast<double>(time - from); };
  if (boundary > refresh_) {
    integral.latched_before = boundary - period >= from ? at(boundary - period) : integral.latched;
    integral.latched = at(boundary);
  }
  integral.value = at(to);
}

void Gpu::settle(int64_t now) {
  if (now <= settled_) return;
  const double passed_ns = static_cast<double>(now - settled_);
  if (truth_ != nullptr) truth_->spent(state_, now - settled_, watts_);
  roll(energy_, settled_, now);
  roll(busy_, settled_, now);
  refresh_ = std::max(refresh_, now - now % period_ns(*platform_));
  const Platform& p = *platform_;
  const double steady_c = p.ambient_c + p.thermal_k_per_w * watts_;
  temperature_c_ = steady_c + (temperature_c_ - steady_c) * std::exp(-passed_ns / (p.thermal_tau_ms * kNsPerMs));
  average_w_ = watts_ + (average_w_ - watts_) * std::exp(-passed_ns / (p.governor_lag_ms * kNsPerMs));
  slow_w_ = watts_ + (slow_w_ - watts_) * std::exp(-passed_ns / (p.governor_slow_ms * kNsPerMs));
  settled_ = now;
}

bool Gpu::update() {
  const Platform& p = *platform_;
  const bool active = kernels_ > 0 || !communications_.empty();
  if (active) {
    asleep_ = false;
    idle_since_ = settled_;
  }
  const double before = clock_mhz_;
  clock_mhz_ = target_mhz();
  capped_ = computing() && clock_mhz_ < (locked_max_mhz_ != 0 ? locked_max_mhz_ : p.clock_max_mhz);
  watts_ = asleep_ ? p.idle_p8_w : watts_at(clock_mhz_, computing());
  energy_.rate = watts_ * 1e-3;  // W over a ns is 1e-3 uJ
  busy_.rate = active ? 1.0 : 0.0;
  if (truth_ != nullptr) note_state();
  return clock_mhz_ != before;
}

bool Gpu::tick(int64_t now) {
  settle(now);
  const Platform& p = *platform_;
  const bool active = kernels_ > 0 || !communications_.empty();
  if (!active && static_cast<double>(now - idle_since_) >= p.idle_drop_ms * kNsPerMs) asleep_ = true;
  const bool locked = locked_max_mhz_ != 0 && locked_max_mhz_ <= cap_mhz_;
  const double limit_w = p.power_limit_w - p.governor_slow_gain * std::max(0.0, slow_w_ - p.power_limit_w);
  if (average_w_ > limit_w + p.governor_high_w) {
    cap_mhz_ = std::min(cap_mhz_, clock_mhz_) - p.governor_step_mhz;
  } else if (!locked && !computing()) {
    cap_mhz_ = p.clock_max_mhz;  // without computation there is nothing to govern
  } else if (!locked && std::max(average_w_, watts_) < limit_w + p.governor_low_w) {
    cap_mhz_ += p.governor_step_mhz;
  }
  cap_mhz_ = std::clamp<double>(cap_mhz_, p.clock_min_mhz, p.clock_max_mhz);
  if (asleep_) return false;
  return true;
}

void Gpu::write(GpuState& state) const {
  const uint32_t version = state.version.load(std::memory_order_relaxed);
  state.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  state.clock_mhz = static_cast<uint32_t>(clock_mhz_);
  state.memory_clock_mhz = asleep_ ? 405 : platform_->memory_clock_mhz;
  state.locked_min_mhz = locked_min_mhz_;
  state.locked_max_mhz = locked_max_mhz_;
  state.throttle_reasons = asleep_ ? kThrottleIdle : capped_ ? kThrottlePowerCap : 0;
  state.p_state = asleep_ ? 8 : 0;
  state.power_limit_mw = power_limit_mw();
  state.since_ns = static_cast<uint64_t>(settled_);
  state.refresh_ns = static_cast<uint64_t>(refresh_);
  state.temperature_c = temperature_c_;
  state.energy_uj = energy_;
  state.busy_ns = busy_;
  std::atomic_thread_fence(std::memory_order_release);
  state.version.store(version + 2, std::memory_order_release);
}

}  // namespace powerccl::physics
