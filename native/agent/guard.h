// SPDX-License-Identifier: Apache-2.0
// Watches the clock journal and undoes what dead ranks left.
#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "agent/owner.h"
#include "device/clock_journal.h"

namespace powerccl::agent {

// Puts back the clock of the device of this name (abi/journal.h); a code and text of native/device.
using ResetClock = std::function<int(const char* device, device::Error* error)>;

// Resets GPUs through NVML, which it loads at the first call, and cores through cpufreq.
int reset_device(const char* device, device::Error* error);

class Guard {
 public:
  // dry: no GPU is ever reset; a mark left by a dead rank is reported and kept. Cores are: they were really set.
  Guard(device::Journal* journal, ResetClock reset, bool dry);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Looks at every slot: begins to watch new owners, undoes the locks of dead ones, tries failed resets again.
  void scan();
  // One entry for each watched process; readable means that it is dead and scan() is due at once.
  void add_poll_entries(std::vector<pollfd>* entries) const;

  // Processes that have claimed a GPU and live: any of them may lock its clock yet.
  std::vector<uint32_t> living_owners() const;
  // Marks of dead processes that are still worth trying to undo.
  bool work_left() const;
  // How many GPUs are left marked: tried in vain, or dry.
  unsigned left_locked() const;

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
  ResetClock reset_;
  bool dry_;
  powerccl_journal copy_{};
  std::array<Watch, POWERCCL_JOURNAL_SLOTS> watches_;
};

}  // namespace powerccl::agent
