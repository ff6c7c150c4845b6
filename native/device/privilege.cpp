// SPDX-License-Identifier: Apache-2.0
#include "device/privilege.h"

#include <stdio.h>
#include <unistd.h>

namespace powerccl::device {

bool process_has_sys_admin() {
  constexpr unsigned long long kSysAdminBit = 1ull << 21;  // CAP_SYS_ADMIN of linux/capability.h
  FILE* status = fopen("/proc/self/status", "re");
  if (!status) return geteuid() == 0;
  unsigned long long effective = 0;
  bool found = false;
  char line[256];
  while (!found && fgets(line, sizeof line, status)) found = sscanf(line, "CapEff: %llx", &effective) == 1;
  fclose(status);
  return found ? (effective & kSysAdminBit) != 0 : geteuid() == 0;
}

}  // namespace powerccl::device
