// SPDX-License-Identifier: Apache-2.0
// The clock of a waiting thread's core: lowered during long waits where the user asked for it and cpufreq may be
// written, marked in the clock journal meanwhile so that powerccl-agent puts it back should the process die.
#ifndef POWERCCL_DOORS_MPI_CORE_CLOCKS_H
#define POWERCCL_DOORS_MPI_CORE_CLOCKS_H
#include "device/clock_journal.h"
#include "device/core_clock.h"

namespace powerccl::mpi {

// Of one thread. Only a thread that is bound to one core has anything to lower: whoever else runs there has none other.
class ThreadCore {
 public:
  // A long wait begins, or has ended.
  void lower(device::Journal* journal, const char* sysfs_cores);
  void restore();
  // The thread ends.
  void leave();

 private:
  bool find(device::Journal* journal, const char* sysfs_cores);

  device::CoreClock clock_;
  powerccl_journal_slot* slot_ = nullptr;
  bool tried_ = false, lowered_ = false;
};

}  // namespace powerccl::mpi
#endif
