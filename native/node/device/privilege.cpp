// SPDX-License-Identifier: Apache-2.0
#include "device/privilege.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace powerccl::device {

bool process_has_sys_admin() {
  constexpr unsigned kSysAdmin = 21;  // CAP_SYS_ADMIN of <linux/capability.h>
  FILE* status = fopen("/proc/self/status", "re");
  if (!status) return geteuid() == 0;
  static const char kKey[] = "CapEff:";
  unsigned long long effective = 0;
  bool has_line = false;
  char line[256];
  while (!has_line && fgets(line, sizeof line, status)) {
    has_line = strncmp(line, kKey, sizeof kKey - 1) == 0;
    if (has_line) effective = strtoull(line + sizeof kKey - 1, nullptr, 16);
  }
  fclose(status);
  return has_line ? (effective >> kSysAdmin & 1u) != 0 : geteuid() == 0;
}

}  // namespace powerccl::device
