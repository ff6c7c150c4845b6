// SPDX-License-Identifier: Apache-2.0
// Busy and idle time of all processors of this host, from /proc/stat.
#pragma once
#include <stdint.h>

namespace powerccl::device {

inline constexpr char kProcStat[] = "/proc/stat";

// Summed over the processors, since the machine's start, modulo 2^63 ns: 256 processors get there in fourteen months.
struct CpuTime {
  int64_t busy_ns = -1;  // user, nice, system, irq, softirq, steal; guests are part of user
  int64_t idle_ns = -1;  // idle, iowait
};

// Reads the first line of /proc/stat, whose numbers count ticks of `ns_per_tick`. False, with `time` left as it is, if
// it is not that; kernels before iowait's had four numbers, which are enough.
bool parse_cpu_time(const char* text, int64_t ns_per_tick, CpuTime* time);

// The file to read from, -1 if it cannot be opened; close() it in the end.
int cpu_time_open(const char* proc_stat);
bool cpu_time_read(int file, CpuTime* time);

}  // namespace powerccl::device
