// SPDX-License-Identifier: Apache-2.0
// Watches the clock journal, and restores the clock of a core that a dead rank has left lowered.
#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "agent/owner.h"
#include "device/clock_journal.h"

namespace powerccl::agent {

// Restores the clock of the core of this name (abi/journal.h); a code and text of native/device.
using RestoreCore = std::function<int(const char* name, device::Error* error)>;
// Through cpufreq.
int restore_core(const char* name, device::Error* error);

class Guard {
 public:
  Guard(device::Journal* journal, RestoreCore restore) : journal_(journal), restore_(std::move(restore)) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Looks at every slot: begins to watch new owners, restores the cores of dead ones, tries again what failed.
  void scan();
  // One entry for each watched process; readable means that it is dead and scan() is due at once.
  void add_poll_entries(std::vector<pollfd>* entries) const;

  // Processes that have claimed a core and live: any of them may lower its clock yet.
  std::vector<uint32_t> living_owners() const;
  // Marks of dead processes that are still worth trying to undo.
  bool work_left() const;
  // How many cores are left marked, having been tried in vain.
  unsigned left_marked() const;

 private:
  struct Watch {
    powerccl_journal_slot slot{};  // as it was read last; pid 0: nobody
    Owner owner;
    int tries = 0;
    int64_t next_try_ns = 0;
    bool dead = false;
    bool abandoned = false;
  };

  void look(unsigned index, powerccl_journal_slot slot);
  static void end_watch(Watch* watch);
  void bury(unsigned index, Watch* watch);

  device::Journal* journal_;
  RestoreCore restore_;
  powerccl_journal copy_{};
  std::array<Watch, POWERCCL_JOURNAL_SLOTS> watches_;
};

}  // namespace powerccl::agent
