// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace powerccl::leases {

// SplitMix64: the same numbers from the same seed everywhere, and cheap to seed once a client.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t value = state_ += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }
  // From `least` to `most`, both included.
  uint32_t between(uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(next() % (uint64_t{most} - least + 1));
  }
  bool chance(uint32_t percent) { return next() % 100 < percent; }

 private:
  uint64_t state_;
};

}  // namespace powerccl::leases
