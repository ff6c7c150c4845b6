// SPDX-License-Identifier: Apache-2.0
// What libc gives, in the shape the runtime needs it. Nothing here allocates, throws or blocks for long.
#pragma once
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "libc/spin_lock.h"

namespace powerccl {

// The kernel's own clocks. A library that interposes clock_gettime and nanosleep (libfaketime) changes neither what
// a record says nor how long our threads sleep.
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

// Copies at most size - 1 characters and always terminates.
inline void copy_text(char* to, size_t size, const char* from) {
  size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

// A file's own name, without the folders above it.
inline const char* file_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != nullptr && slash[1] != '\0' ? slash + 1 : path;
}

// Waits while *word == expected, at most timeout_ns; spurious wake-ups happen.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, uint64_t timeout_ns) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1000000000u), static_cast<long>(timeout_ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}
inline void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}

}  // namespace powerccl
