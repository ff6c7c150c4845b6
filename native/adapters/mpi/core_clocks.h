// SPDX-License-Identifier: Apache-2.0
// The clock of a waiting thread's core, lowered during long waits where the user asked for it. Where cpufreq may be
// written the thread writes it, marked in the clock journal meanwhile so that powerccl-agent puts it back should the
// process die. Elsewhere powerccld leases the core: a thread of ours asks it, so that no wait waits for the daemon.
#ifndef POWERCCL_ADAPTERS_MPI_CORE_CLOCKS_H
#define POWERCCL_ADAPTERS_MPI_CORE_CLOCKS_H
#include "base/environment.h"
#include "clock/clock_actuator.h"
#include "clock/lease_client.h"
#include "clock/per_call_clock.h"
#include "device/clock_journal.h"
#include "device/core_clock.h"

namespace powerccl::mpi {

// Shared by all threads, constant once made.
struct CoreClocks {
  device::Journal journal;
  char sysfs_cores[PATH_MAX + 32] = "";
  bool by_lease = false;  // even where cpufreq may be written
  const Environment* environment = nullptr;
  TraceWriter* trace = nullptr;  // of the clocks that were leased
};

// Of one thread. Only a thread that is bound to one core has anything to lower: whoever else runs there has none other.
class ThreadCore {
 public:
  // A long wait begins, or has ended.
  void lower(CoreClocks* clocks);
  void restore();
  // The thread ends.
  void leave();
  // A forked child: what is lowered is its parent's.
  void forget() { lease_.forget(); }

 private:
  enum class By { kNobody, kItself, kLease };

  By find(CoreClocks* clocks);
  By find_lease(const CoreClocks& clocks);
  void restore_itself();

  device::CoreClock clock_;
  By by_ = By::kNobody;
  bool tried_ = false, lowered_ = false;
  device::JournalClaim claim_;  // by itself
  LeaseClient lease_;
  ClockActuator actuator_;
  PerCallClock per_call_{&actuator_};
};

}  // namespace powerccl::mpi
#endif
