// SPDX-License-Identifier: Apache-2.0
// What the ranks of one host share: how long each kind of communication takes the rank that comes last to it, which
// waits for nobody. Nobody waits for anybody here either.
#ifndef POWERCCL_POLICY_NODE_STATE_H
#define POWERCCL_POLICY_NODE_STATE_H
#include <stdint.h>

#include <atomic>

namespace powerccl {

// Lies in memory that is all zero to begin with.
class NodeState {
 public:
  // A rank has seen communication of this kind last so long, in us. Returns the least that any rank has: whoever comes
  // last to a collective has nothing to wait for. It rises slowly, in case that conditions change.
  uint32_t least_us(uint32_t kind, uint32_t seen_us) {
    for (uint32_t tried = 0; tried < kWays; ++tried) {
      std::atomic<uint64_t>& entry = least_[(kind + tried) % kKinds];
      uint64_t held = entry.load(std::memory_order_relaxed);
      if (held == 0 && entry.compare_exchange_strong(held, uint64_t{kind} << 32 | seen_us)) return seen_us;
      if (held >> 32 != kind) continue;
      const uint32_t least = static_cast<uint32_t>(held);
      const uint32_t now = seen_us < least ? seen_us : least + (seen_us - least) / 256;
      if (now != least) entry.compare_exchange_strong(held, uint64_t{kind} << 32 | now);
      return now;
    }
    return seen_us;
  }

  // A rank measures the baseline anew until so many calls of the job: the others do as well. All make the same calls.
  void measure_until(uint64_t calls) {
    uint64_t held = until_.load(std::memory_order_relaxed);
    while (held < calls && !until_.compare_exchange_weak(held, calls, std::memory_order_relaxed)) {
    }
  }
  uint64_t measured_until() const { return until_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kKinds = 448, kWays = 8;
  std::atomic<uint64_t> until_{0};         // calls
  std::atomic<uint64_t> least_[kKinds]{};  // kind << 32 | us; 0: free
};

}  // namespace powerccl
#endif
