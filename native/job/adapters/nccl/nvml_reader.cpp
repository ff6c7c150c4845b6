// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/nvml_reader.h"

#include <atomic>

#include "device/nvml_clock.h"

namespace powerccl::nccl {

void open_nvml_reader(void*, const GpuIdentity& gpu, ClockClient* client) {
  static device::ClockDevice devices[Runtime::kGpus];
  static std::atomic<uint32_t> count{0};
  const uint32_t index = count.fetch_add(1, std::memory_order_relaxed);
  if (index >= Runtime::kGpus || device::clock_open(&devices[index], gpu.id(), nullptr) != 0) return;
  client->self = &devices[index];
  client->read = [](void* self, uint32_t* mhz) {
    return device::clock_read_sm_mhz(static_cast<device::ClockDevice*>(self), mhz, nullptr);
  };
}

}  // namespace powerccl::nccl
