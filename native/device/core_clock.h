// SPDX-License-Identifier: Apache-2.0
// The clock of one processor core through cpufreq (sysfs): to the lowest while its thread waits, and back.
//
// Source of facts: Linux, Documentation/admin-guide/pm/cpufreq.rst. Like native/device/nvml_clock.h this does what it
// is told; consent and the journal mark (clock_journal.h, under CoreClock::name) come before core_clock_lower.
#ifndef POWERCCL_DEVICE_CORE_CLOCK_H
#define POWERCCL_DEVICE_CORE_CLOCK_H
#include <limits.h>
#include <stdint.h>

#include "device/error.h"

namespace powerccl::device {

// No file is kept open: a program that closes all of its descriptors may be given the number for a file of its own.
struct CoreClock {
  int cpu = -1;
  char sysfs_cores[PATH_MAX] = "";
  uint32_t usual_khz = 0;   // what stood there
  uint32_t lowest_khz = 0;  // cpuinfo_min_freq
  char name[48] = "";       // "cpu3@2800000": enough to put it back
};

// Whether the core has a clock of its own, and its lowest; takes no right, fills in `cpu` and `lowest_khz`.
// kBadArgument: its clock is also other cores'; kSystem: there is no such core or no cpufreq.
int core_clock_find(CoreClock* clock, const char* sysfs_cores, int cpu, Error* error);
// The same, and what stands in its cpufreq policy. Also kSystem: it may not be written. That the core is at its lowest
// is no error: whoever died there may have left it so, and it has to be put back.
int core_clock_open(CoreClock* clock, const char* sysfs_cores, int cpu, Error* error);

int core_clock_lower(CoreClock* clock, Error* error);
int core_clock_set(CoreClock* clock, uint32_t highest_khz, Error* error);
// The core's clock now, in kHz (scaling_cur_freq).
int core_clock_read(const char* sysfs_cores, int cpu, uint32_t* khz, Error* error);
int core_clock_restore(CoreClock* clock, Error* error);

// Whether a name in the journal is a core's and not a GPU's; and putting back the core that it names.
bool is_core_clock(const char* name);
int core_clock_restore_named(const char* sysfs_cores, const char* name, Error* error);

}  // namespace powerccl::device
#endif
