// SPDX-License-Identifier: Apache-2.0
#include "physics/readings.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace powerccl::physics {
namespace {

constexpr uint32_t kFirstBus = 0x3b, kBuses = 0x100;  // the first without a host; bus numbers have 8 bits

uint64_t name_hash(const std::string& name, uint64_t salt) {
  uint64_t hash = 0xcbf29ce484222325u ^ salt;
  for (const char each : name) hash = (hash ^ static_cast<uint8_t>(each)) * 0x100000001b3u;
  return hash;
}

}  // namespace

void fill_board(const Platform& platform, const std::string& host, int64_t start, BoardPage& page) {
  memcpy(page.magic, "PWCCLEMU", 8);
  page.abi = kAbi;
  page.gpus = platform.gpus;
  page.server_pid = static_cast<uint32_t>(getpid());
  snprintf(page.platform, sizeof page.platform, "%s %08x", platform.name.c_str(), platform.fingerprint);
  snprintf(page.gpu_name, sizeof page.gpu_name, "%s", platform.gpu_name.c_str());
  snprintf(page.driver_version, sizeof page.driver_version, "%s powerccl-emulator", platform.driver_version.c_str());
  page.start_ns = static_cast<uint64_t>(start);
  page.known_until_ns = UINT64_MAX;
  page.memory_bytes = platform.memory_bytes;
  page.refresh_period_ns = static_cast<uint64_t>(std::llround(platform.refresh_ms * 1e6));
  page.energy_read_ns = static_cast<uint64_t>(std::llround(platform.energy_read_us * 1e3));
  page.clock_min_mhz = platform.clock_min_mhz;
  page.clock_max_mhz = platform.clock_max_mhz;
  page.clock_step_mhz = platform.clock_step_mhz;
  page.memory_clock_mhz = platform.memory_clock_mhz;
  page.compute_major = platform.compute_major;
  page.compute_minor = platform.compute_minor;
  page.multiprocessors = platform.multiprocessors;
  page.may_set_clocks = platform.may_set_clocks ? 1 : 0;
  const std::string name = platform.name + host;
  const uint64_t high = name_hash(name, 1), first_low = name_hash(name, 0x9e3779b97f4a7c15u);
  // Bus 0 is the chipset's.
  const uint32_t first_bus = host.empty() ? kFirstBus : 1 + static_cast<uint32_t>(high % (kBuses - platform.gpus));
  for (uint32_t i = 0; i < platform.gpus; ++i) {
    BoardGpu& gpu = page.gpu[i];
    const uint64_t low = first_low + i;
    for (unsigned byte = 0; byte < 8; ++byte) {
      gpu.uuid_bytes[byte] = static_cast<uint8_t>(high >> (56u - 8u * byte));
      gpu.uuid_bytes[8 + byte] = static_cast<uint8_t>(low >> (56u - 8u * byte));
    }
    int at = snprintf(gpu.uuid, sizeof gpu.uuid, "GPU-");
    for (int byte = 0; byte < 16; ++byte) {
      const bool dash = byte == 4 || byte == 6 || byte == 8 || byte == 10;
      at += snprintf(gpu.uuid + at, sizeof gpu.uuid - static_cast<size_t>(at), "%s%02x", dash ? "-" : "",
                     gpu.uuid_bytes[byte]);
    }
    gpu.bus = first_bus + i;
    snprintf(gpu.pci, sizeof gpu.pci, "00000000:%02X:00.0", gpu.bus);
  }
}

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
