// SPDX-License-Identifier: Apache-2.0
// Readings of an emulated GPU from the board page, as of now, refreshed as seldom as the platform's sensors are.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

// The unchanging part of the board page: who the GPUs are.
// The GPUs of a platform on that host have the same UUIDs and PCI addresses in every run, as a server's would. `host`:
// what tells it from others; empty: none, then each machine gives the same.
void fill_board(const Platform& platform, const std::string& host, int64_t start, BoardPage& page);

struct Readings {
  uint32_t clock_mhz, memory_clock_mhz, throttle_reasons, p_state;
  uint32_t power_mw;  // mean of the last whole refresh period
  uint32_t power_limit_mw;
  uint32_t utilization_pct;  // of the last whole refresh period
  uint32_t temperature_c;
  uint64_t energy_mj;  // since the server started, as of the last refresh
};

// The energy readings of each GPU that a process got. A server that receives submissions late changes the past; a real
// GPU's counter never goes back.
class EnergyCounters {
 public:
  uint64_t at_least(uint32_t gpu, uint64_t energy_mj);  // the highest so far; thread-safe

 private:
  std::array<std::atomic<uint64_t>, kMaxGpus> reported_mj_{};
};

Readings read_gpu(const BoardPage& board, uint32_t gpu, uint64_t now_ns);

}  // namespace powerccl::physics
