// SPDX-License-Identifier: Apache-2.0
// The processor's own counter as a clock: 10 ns a reading where clock_gettime takes 20 to 40, which counts when an
// all-reduce takes 200. Used only where it runs at one rate through every clock and sleep state.
#pragma once
#include <stdint.h>

#include "base/basics.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace powerccl {

// Set by TickClock::begin; false: ticks are nanoseconds of CLOCK_MONOTONIC.
inline bool g_ticks_are_counter = false;

#if defined(__x86_64__)
inline uint64_t counter() {
  return __rdtsc();
}
// CPUID says so.
inline bool counter_is_steady() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
#elif defined(__aarch64__)
inline uint64_t counter() {
  uint64_t value = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
}
// The architecture says so of each counter. A tick may be as long as 1 us, and below 50 MHz (20 ns) it is too long for
// what is measured here. NVIDIA's Grace counts at 1 GHz; at double of this bound, counters of 62.5 MHz would be left
// out.
inline bool counter_is_steady() {
  uint64_t hertz = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  return hertz >= 50000000u;
}
#else
inline uint64_t counter() {
  return 0;
}
inline bool counter_is_steady() {
  return false;
}
#endif

inline uint64_t ticks() {
  return __builtin_expect(g_ticks_are_counter, 1) ? counter() : monotonic_ns();
}

// Ticks into nanoseconds of CLOCK_MONOTONIC. One thread calibrates, any may convert; the rate settles with time.
class TickClock {
 public:
  // Takes 200 us: the first estimate of the rate, good to some 0.1 %.
  void begin() {
    g_ticks_are_counter = counter_is_steady();
    pair(&base_ticks_, &base_ns_);
    if (!g_ticks_are_counter) return;
    while (monotonic_ns() - base_ns_ < 200000) {
    }
    calibrate();
  }
  void calibrate() {
    if (!g_ticks_are_counter) return;
    uint64_t now_ticks = 0, now_ns = 0;
    pair(&now_ticks, &now_ns);
    if (now_ticks <= base_ticks_ || now_ns <= base_ns_) return;
    ns_per_tick_.store(static_cast<double>(now_ns - base_ns_) / static_cast<double>(now_ticks - base_ticks_),
                       std::memory_order_relaxed);
  }
  double ns_per_tick() const { return ns_per_tick_.load(std::memory_order_relaxed); }
  uint64_t length_ns(uint64_t length_ticks) const {
    return static_cast<uint64_t>(static_cast<double>(length_ticks) * ns_per_tick());
  }
  uint64_t time_ns(uint64_t at_ticks) const {
    return at_ticks >= base_ticks_ ? base_ns_ + length_ns(at_ticks - base_ticks_) : base_ns_;
  }
  uint64_t from_ns(uint64_t length) const { return static_cast<uint64_t>(static_cast<double>(length) / ns_per_tick()); }

 private:
  // Of a few readings the one least disturbed.
  static void pair(uint64_t* at_ticks, uint64_t* at_ns) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const uint64_t before = ticks();
      const uint64_t ns = monotonic_ns();
      const uint64_t after = ticks();
      if (after - before < least) {
        least = after - before;
        *at_ticks = before + (after - before) / 2;
        *at_ns = ns;
      }
    }
  }

  uint64_t base_ticks_ = 0, base_ns_ = 0;
  std::atomic<double> ns_per_tick_{1.0};
};

}  // namespace powerccl
