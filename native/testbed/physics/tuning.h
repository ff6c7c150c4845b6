// SPDX-License-Identifier: Apache-2.0
// What NCCL's variables and a tuner's choices make of a collective's time and power, relative to NCCL's defaults.
#pragma once
#include "physics/collective_messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

// How one collective is carried out.
struct Method {
  uint8_t algorithm = kRing, protocol = kSimple;
  uint32_t channels = 1;
  Carrier carrier = Carrier::kChannels;  // others have neither algorithm, protocol nor channels
  bool operator==(const Method&) const = default;
};

// NCCL's own choice for an operation of so many bytes (NCCL tests' size).
Method default_method(const Platform& platform, Pattern pattern, double bytes);
// What the task's bytes on the wire say; zeros there are the default.
Method method_of(const Platform& platform, Pattern pattern, double bytes, uint8_t method, uint8_t channels);
// Platform::collective_ns(), and exactly that where method and settings are NCCL's defaults.
double tuned_ns(const Platform& platform, Pattern pattern, double bytes, double clock_mhz, uint32_t ranks,
                const Method& method, const NcclSettings& settings);
// Of sends and receives, whose method is NCCL's own: their bandwidth beside that with default settings.
double transfer_factor(const Platform& platform, double bytes, uint32_t ranks, const NcclSettings& settings);
// Of the power that communication adds: channels are thread blocks, each busy on a multiprocessor of its own.
double power_factor(const Platform& platform, Pattern pattern, double bytes, const Method& method, const Method& usual);

// Of how much communication slows computation beside it: copy engines take no multiprocessor.
double slowing_factor(const Platform& platform, Pattern pattern, double bytes, const Method& method);

}  // namespace powerccl::physics
