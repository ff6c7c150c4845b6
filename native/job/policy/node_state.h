// SPDX-License-Identifier: Apache-2.0
// What the ranks of one host share. For each kind of communication: how long it takes the rank that comes last, which
// waits for no other. How many calls an iteration has. The lowest baseline clock. Which clock all go to. Until when all
// measure the baseline. No function here waits.
#pragma once
#include <stdint.h>

#include <atomic>

namespace powerccl {

// In memory that is all zero to begin with.
class NodeState {
 public:
  // A rank has seen communication of this kind last so long, in us. Returns the least that any rank has: the rank that
  // comes last to a collective has nothing to wait for. It rises slowly, in case that conditions change.
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

  // Ranks tell each other clocks in these steps, MHz.
  static constexpr double kToldMhz = 1 / 16.0;
  static double told(double mhz) { return static_cast<uint32_t>(mhz / kToldMhz) * kToldMhz; }

  // A rank's baseline clock is this high, as far as it knows, by a measurement that ends with so many calls of the job.
  // Returns the lowest of all ranks'. A later measurement replaces it; otherwise it rises slowly, in case that
  // conditions change.
  double lowest_mhz(uint64_t calls, double mhz) {
    uint64_t held = lowest_.load(std::memory_order_relaxed), now = 0;
    do {
      const bool new_one = held == 0 || calls > held >> kClockBits;
      const auto seen = static_cast<int64_t>(steps(mhz)), least = static_cast<int64_t>(held & kClockMask);
      const int64_t lowest = new_one || seen < least ? seen : least + (seen - least) / 256;
      now = (new_one ? calls << kClockBits : held & ~kClockMask) | static_cast<uint64_t>(lowest);
    } while (now != held && !lowest_.compare_exchange_weak(held, now, std::memory_order_relaxed));
    return clock(now);
  }

  // A rank would go to this clock behind so many calls of the job. Returns the one that the first rank named.
  double agree_on_clock(uint64_t calls, double mhz) {
    const uint64_t wanted = calls << kClockBits | steps(mhz);
    uint64_t held = clock_.load(std::memory_order_relaxed);
    while (held >> kClockBits != calls) {
      if (held >> kClockBits > calls) return mhz;  // this rank is late, and judges alone
      if (clock_.compare_exchange_weak(held, wanted, std::memory_order_relaxed)) return mhz;
    }
    return clock(held);
  }

  // Calls repeat after `base`, and a rank finds that times repeat after `period`, a multiple of it. Returns what all
  // ranks are to take: the longest that any has found. Noise hides it from some of them.
  uint32_t agree_on(uint32_t base, uint32_t period) {
    uint64_t held = period_.load(std::memory_order_relaxed);
    for (;;) {
      const auto longest = static_cast<uint32_t>(held);
      if (held >> 32 == base && longest >= period) return longest % period == 0 ? longest : period;
      if (period_.compare_exchange_weak(held, uint64_t{base} << 32 | period, std::memory_order_relaxed)) return period;
    }
  }

  // A rank measures the baseline again until so many calls of the job: the others do as well. All make the same calls.
  // `suspected`: because references contradict the baseline.
  void measure_until(uint64_t calls, bool suspected) {
    const uint64_t wanted = calls << 1 | (suspected ? 1 : 0);
    uint64_t held = until_.load(std::memory_order_relaxed);
    while (held < wanted && !until_.compare_exchange_weak(held, wanted, std::memory_order_relaxed)) {
    }
  }
  struct Until {
    uint64_t calls;
    bool suspected;
  };
  Until measured_until() const {
    const uint64_t held = until_.load(std::memory_order_relaxed);
    return {held >> 1, (held & 1) != 0};
  }

 private:
  static constexpr uint32_t kKinds = 448, kWays = 8, kClockBits = 20;
  static constexpr uint64_t kClockMask = (1u << kClockBits) - 1;
  static uint64_t steps(double mhz) { return static_cast<uint64_t>(mhz / kToldMhz) & kClockMask; }
  static double clock(uint64_t held) { return static_cast<double>(held & kClockMask) * kToldMhz; }

  std::atomic<uint64_t> lowest_{0}, clock_{0};  // calls << kClockBits | steps of kToldMhz
  std::atomic<uint64_t> until_{0};              // calls << 1 | suspected
  std::atomic<uint64_t> period_{0};             // base << 32 | calls
  std::atomic<uint64_t> least_[kKinds]{};       // kind << 32 | us; 0: free
};

}  // namespace powerccl
