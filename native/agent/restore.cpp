// SPDX-License-Identifier: Apache-2.0
#include "agent/restore.h"

#include <cstdio>

#include "agent/log.h"
#include "device/core_clock.h"

namespace powerccl::agent {

int restore_all(const std::string& run_folder, const ResetClock& reset, bool dry) {
  device::Journal journal;
  device::Error error;
  if (device::journal_open_existing(&journal, run_folder.c_str(), &error) != device::kOk) {
    say("%s\nhint: a journal holds the clocks of the host it names: run this on that host, on the run's own folder",
        error.text);
    return 1;
  }
  unsigned marked = 0;
  unsigned failed = 0;
  for (powerccl_journal_slot& slot : journal.map->slot) {
    if (__atomic_load_n(&slot.state, __ATOMIC_ACQUIRE) == POWERCCL_CLOCK_DEFAULT) continue;
    ++marked;
    bool alive = device::journal_owner_alive(&slot);
    if (dry && !device::is_core_clock(slot.device)) {
      std::printf("%s: locked by process %u%s, left so (dry)\n", slot.device, slot.pid, alive ? ", which lives" : "");
      continue;
    }
    if (int code = reset(slot.device, &error); code != device::kOk) {
      say("%s cannot be reset: %s%s", slot.device, error.text, hint_line(code));
      ++failed;
      continue;
    }
    std::printf("%s: reset%s\n", slot.device, alive ? "; its process lives and may lock it again" : "");
    __atomic_add_fetch(&slot.restored_by_agent, 1, __ATOMIC_RELAXED);
    device::journal_clear(&slot);
    if (!alive) device::journal_release(&slot);
  }
  if (marked == 0) std::printf("no clock is marked as set\n");
  device::journal_close(&journal);
  return failed ? 1 : 0;
}

}  // namespace powerccl::agent
