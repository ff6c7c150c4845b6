// SPDX-License-Identifier: Apache-2.0
#include "doors/mpi/core_clocks.h"

#include <sched.h>

#include "runtime/log.h"

namespace powerccl::mpi {

bool ThreadCore::find(device::Journal* journal, const char* sysfs_cores) {
  tried_ = true;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) != 1) return false;
  device::Error error;
  if (device::core_clock_open(&clock_, sysfs_cores, sched_getcpu(), &error) != device::kOk ||
      device::journal_claim(journal, clock_.name, &slot_, &error) != device::kOk) {
    device::core_clock_close(&clock_);
    return false;
  }
  return true;
}

void ThreadCore::lower(device::Journal* journal, const char* sysfs_cores) {
  if (lowered_ || (slot_ == nullptr && (tried_ || !find(journal, sysfs_cores)))) return;
  if (sched_getcpu() != clock_.cpu) return;  // bound elsewhere since
  device::journal_mark(slot_);
  lowered_ = true;
  if (device::core_clock_lower(&clock_, nullptr) != device::kOk) restore();
}

void ThreadCore::restore() {
  if (!lowered_) return;
  lowered_ = false;
  device::Error error;
  if (device::core_clock_restore(&clock_, &error) == device::kOk) {
    device::journal_clear(slot_);
    return;
  }
  // The mark stays, and with it powerccl-agent's duty; this thread lowers nothing again.
  say("powerccl-agent puts it back when this process ends", "%s", error.text);
  device::core_clock_close(&clock_);
  slot_ = nullptr;
}

void ThreadCore::leave() {
  restore();
  if (slot_ != nullptr) device::journal_release(slot_);
  slot_ = nullptr;
  device::core_clock_close(&clock_);
  tried_ = false;
}

}  // namespace powerccl::mpi
