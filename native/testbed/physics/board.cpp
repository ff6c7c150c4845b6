// SPDX-License-Identifier: Apache-2.0
#include "physics/board.h"

#include <unistd.h>

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

}  // namespace powerccl::physics
