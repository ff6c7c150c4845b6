// SPDX-License-Identifier: Apache-2.0
#include "physics/readings.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace powerccl::physics {
namespace {

struct Snapshot {
  uint32_t clock_mhz, memory_clock_mhz, throttle_reasons, p_state, power_limit_mw;
  uint64_t since_ns, refresh_ns;
  double temperature_c;
  Integral energy_uj, busy_ns;
};

Snapshot take(const GpuState& state) {
  while (true) {
    const uint32_t before = state.version.load(std::memory_order_acquire);
    const Snapshot snapshot{state.clock_mhz,      state.memory_clock_mhz, state.throttle_reasons, state.p_state,
                            state.power_limit_mw, state.since_ns,         state.refresh_ns,       state.temperature_c,
                            state.energy_uj,      state.busy_ns};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && state.version.load(std::memory_order_relaxed) == before) return snapshot;
  }
}

// The value at the last refresh before now, and one period earlier. A refresh since the last change of state is on
// the line from there; those before it were kept by the server.
struct Refreshed {
  double last, before;
};

Refreshed refreshed(const Integral& integral, const Snapshot& snapshot, uint64_t now_ns, uint64_t period_ns) {
  const uint64_t boundary = now_ns - now_ns % period_ns;
  auto at = [&](uint64_t time) {
    return integral.value + integral.rate * static_cast<double>(time - snapshot.since_ns);
  };
  if (boundary <= snapshot.refresh_ns) return {integral.latched, integral.latched_before};
  return {at(boundary), boundary - period_ns >= snapshot.since_ns ? at(boundary - period_ns) : integral.latched};
}

}  // namespace

uint64_t EnergyCounters::at_least(uint32_t gpu, uint64_t energy_mj) {
  std::atomic<uint64_t>& reported = reported_mj_[gpu];
  uint64_t before = reported.load();
  while (before < energy_mj && !reported.compare_exchange_weak(before, energy_mj)) {
  }
  return std::max(before, energy_mj);
}

Readings read_gpu(const BoardPage& board, uint32_t gpu, uint64_t now_ns) {
  Snapshot snapshot;
  uint64_t advances, known_until_ns;
  do {
    advances = board.advances.load(std::memory_order_acquire);
    known_until_ns = board.known_until_ns.load(std::memory_order_acquire);
    snapshot = take(board.gpu[gpu].state);
  } while (board.advances.load(std::memory_order_acquire) != advances);
  now_ns = std::max(std::min(now_ns, known_until_ns), snapshot.since_ns);
  const uint64_t period = std::max<uint64_t>(1, board.refresh_period_ns);
  const Refreshed energy = refreshed(snapshot.energy_uj, snapshot, now_ns, period);
  const Refreshed busy = refreshed(snapshot.busy_ns, snapshot, now_ns, period);
  Readings readings{};
  readings.clock_mhz = snapshot.clock_mhz;
  readings.memory_clock_mhz = snapshot.memory_clock_mhz;
  readings.throttle_reasons = snapshot.throttle_reasons;
  readings.p_state = snapshot.p_state;
  readings.power_limit_mw = snapshot.power_limit_mw;
  // uJ per ns is kW; the reading is in mW
  readings.power_mw = static_cast<uint32_t>(
      std::lround(std::max(0.0, energy.last - energy.before) / static_cast<double>(period) * 1e6));
  readings.utilization_pct = static_cast<uint32_t>(
      std::clamp(std::lround((busy.last - busy.before) / static_cast<double>(period) * 100), 0L, 100L));
  readings.temperature_c = static_cast<uint32_t>(std::lround(snapshot.temperature_c));
  readings.energy_mj = static_cast<uint64_t>(std::max(0.0, energy.last) * 1e-3);
  return readings;
}

}  // namespace powerccl::physics
