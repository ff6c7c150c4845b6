// SPDX-License-Identifier: Apache-2.0
// What libc gives, in the shape the runtime needs it. Nothing here allocates, throws or blocks for long.
#pragma once
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/kernel_clock.h"
#include "libc/spin_lock.h"

namespace powerccl {

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
