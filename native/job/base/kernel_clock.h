// SPDX-License-Identifier: Apache-2.0
// The kernel's own clocks. A library that interposes clock_gettime and nanosleep (libfaketime) changes neither what
// a record says nor how long our threads sleep.
#pragma once
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace powerccl {

using ReadClock = int (*)(clockid_t clock, timespec* now);

// The kernel's function in the vDSO, which needs no system call; found at its first use.
extern constinit std::atomic<ReadClock> g_read_clock;
// By which this process' CLOCK_MONOTONIC is ahead of the host's (abi/host_clock.h); known from the first reading on.
extern constinit std::atomic<uint64_t> g_time_shift_ns;

inline uint64_t clock_ns(clockid_t clock) {
  timespec now;
  g_read_clock.load(std::memory_order_acquire)(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}
// On the host's clock, also in a time namespace.
inline uint64_t monotonic_ns() {
  const uint64_t own_ns = clock_ns(CLOCK_MONOTONIC);
  return own_ns - g_time_shift_ns.load(std::memory_order_relaxed);
}

// The system call itself is no cancellation point, unlike libc's functions.
inline void sleep_ns(uint64_t length_ns) {
  const timespec length{static_cast<time_t>(length_ns / 1000000000u), static_cast<long>(length_ns % 1000000000u)};
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &length, nullptr);
}

}  // namespace powerccl
