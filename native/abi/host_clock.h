// SPDX-License-Identifier: Apache-2.0
// The clock of every `*_ns` that one process writes and another reads: CLOCK_MONOTONIC of the host's initial time
// namespace. In another time namespace (`unshare --time`, some containers) the kernel adds an offset. Without this
// correction, such a job's times would be hours away from its energy samples.
#pragma once
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace powerccl {

// The offset that /proc/self/timens_offsets states for a clock; its lines are "monotonic SECONDS NANOSECONDS" and
// "boottime SECONDS NANOSECONDS".
inline int64_t time_shift_in(const char* offsets, const char* clock) {
  const char* at = strstr(offsets, clock);
  if (at == nullptr) return 0;
  at += strlen(clock);
  int64_t parts[2] = {0, 0};
  for (int64_t& part : parts) {
    while (*at == ' ' || *at == '\t') ++at;
    const bool negative = *at == '-';
    if (negative) ++at;
    for (; *at >= '0' && *at <= '9'; ++at) part = part * 10 + (*at - '0');
    if (negative) part = -part;
  }
  return parts[0] * 1000000000 + parts[1];
}

// How far a clock of this process, "monotonic" or "boottime", is ahead of the host's. The kernel fixes it before the
// first process enters the namespace. 0 where the kernel has no time namespaces (before 5.6) or /proc is missing.
inline int64_t read_time_shift_ns(const char* clock) {
  char links[2][64] = {}, offsets[256] = {};
  const char* const names[2] = {"/proc/self/ns/time", "/proc/self/ns/time_for_children"};
  for (int i = 0; i < 2; ++i) syscall(SYS_readlinkat, AT_FDCWD, names[i], links[i], sizeof(links[i]) - 1);
  // The file states the offsets of the namespace of this process' children, which unshare() may have changed since.
  if (strcmp(links[0], links[1]) != 0) return 0;
  const int file =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC, 0));
  if (file < 0) return 0;
  const long length = syscall(SYS_read, file, offsets, sizeof(offsets) - 1);
  syscall(SYS_close, file);
  return length > 0 ? time_shift_in(offsets, clock) : 0;
}

// The same of CLOCK_MONOTONIC, read once.
inline int64_t time_shift_ns() {
  // NOLINTNEXTLINE(bugprone-dynamic-static-initializers): the same in every file
  static const int64_t shift_ns = read_time_shift_ns("monotonic");
  return shift_ns;
}

inline int64_t read_clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// CLOCK_MONOTONIC of the host.
inline int64_t host_now_ns() {
  return read_clock_ns(CLOCK_MONOTONIC) - time_shift_ns();
}

}  // namespace powerccl
