// SPDX-License-Identifier: Apache-2.0
// Energy counters of the processors (RAPL), through powercap's files or, where those may not be read, the perf PMU
// `power`.
//
// Source of facts: Linux, Documentation/power/powercap/powercap.rst and <arch/x86/events/rapl.c>. AMD's counters appear
// in the same two places under the same names.
#pragma once
#include <stdint.h>

namespace powerccl::device {

inline constexpr int kRaplDomains = 96;  // 16 packages of package, core, uncore, dram, and some over

struct RaplDomain {
  char name[48] = "";       // "package-0", or a part of one: "package-0/dram"; unique on this host
  int64_t range_uj = 0;     // where the counter wraps; 0: it does not, or not known
  int file = -1;            // energy_uj, or a perf counter
  double uj_per_count = 0;  // of a perf counter; 0: the file is energy_uj
};

struct Rapl {
  const char* source = "none";  // or "powercap", "perf"
  int domains = 0;
  RaplDomain domain[kRaplDomains];
  char reason[240] = "";  // where there is no domain: why, and what to do about it
};

// Opens every counter that this process may read. `sysfs` is where sysfs is mounted.
void rapl_open(Rapl* rapl, const char* sysfs);
void rapl_close(Rapl* rapl);

// Microjoules since some start, or -1.
int64_t rapl_read_uj(const RaplDomain* domain);

}  // namespace powerccl::device
