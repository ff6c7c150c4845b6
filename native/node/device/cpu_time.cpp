// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_time.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace powerccl::device {
namespace {

enum Column { kUser, kNice, kSystem, kIdle, kIowait, kIrq, kSoftirq, kSteal, kColumns };

int64_t to_ns(uint64_t ticks, int64_t ns_per_tick) {
  return static_cast<int64_t>(ticks * static_cast<uint64_t>(ns_per_tick) & INT64_MAX);
}

}  // namespace

bool parse_cpu_time(const char* text, int64_t ns_per_tick, CpuTime* time) {
  if (strncmp(text, "cpu ", 4) != 0) return false;
  const char* next = text + 4;
  uint64_t ticks[kColumns] = {};
  int known = 0;
  for (; known < kColumns; ++known) {
    next += strspn(next, " ");
    if (*next < '0' || *next > '9') break;
    char* end = nullptr;
    ticks[known] = strtoull(next, &end, 10);
    if (*end != ' ' && *end != '\n') return false;  // cut off inside a number, or no number
    next = end;
  }
  if (known <= kIdle || (known < kColumns && *next != '\n')) return false;
  const uint64_t busy = ticks[kUser] + ticks[kNice] + ticks[kSystem] + ticks[kIrq] + ticks[kSoftirq] + ticks[kSteal];
  time->busy_ns = to_ns(busy, ns_per_tick);
  time->idle_ns = to_ns(ticks[kIdle] + ticks[kIowait], ns_per_tick);
  return true;
}

int cpu_time_open(const char* proc_stat) {
  return open(proc_stat, O_RDONLY | O_CLOEXEC);
}

bool cpu_time_read(int file, CpuTime* time) {
  char text[512];  // the first line is ten numbers
  const ssize_t length = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
  const long ticks_per_s = sysconf(_SC_CLK_TCK);
  if (length <= 0 || ticks_per_s <= 0) return false;
  text[length] = '\0';
  return parse_cpu_time(text, 1'000'000'000 / ticks_per_s, time);
}

}  // namespace powerccl::device
