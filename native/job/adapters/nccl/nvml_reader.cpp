// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/nvml_reader.h"

#include <atomic>

#include "device/nvml_clock.h"

namespace powerccl::nccl {

namespace {

class NvmlReader final : public ClockClient {
 public:
  bool open(const GpuIdentity& gpu) { return device::clock_open(&device_, gpu.id(), nullptr) == 0; }
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override {
    device::clock_power_limit(&device_, &reading->limit_mw, nullptr);
    device::clock_throttle_reasons(&device_, &reading->reasons, nullptr);
    return device::clock_read_sm_mhz(&device_, &reading->mhz, nullptr);
  }

 private:
  device::ClockDevice device_;
};

}  // namespace

ClockClient* open_nvml_reader(void*, const GpuIdentity& gpu) {
  static NvmlReader readers[Runtime::kGpus];
  static std::atomic<uint32_t> count{0};
  const uint32_t index = count.fetch_add(1, std::memory_order_relaxed);
  return index < Runtime::kGpus && readers[index].open(gpu) ? &readers[index] : nullptr;
}

}  // namespace powerccl::nccl
