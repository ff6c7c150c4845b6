// SPDX-License-Identifier: Apache-2.0
// The process behind a slot of the clock journal, which may be of another PID namespace.
#pragma once
#include <cstdint>

#include "device/clock_journal.h"

namespace powerccl::agent {

class Owner {
 public:
  Owner() = default;
  ~Owner() { forget(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  // Looks for the process that claimed the slot: by its number if the namespace is ours, else through all of /proc.
  void find(const powerccl_journal_slot& slot);
  void forget();
  // Dead if it was seen and is gone. Where it cannot be seen, its lock on the slot decides; a program that has closed
  // our descriptor has none, so without a lock /proc is asked once more.
  bool died(device::Journal* journal, unsigned index, const powerccl_journal_slot& slot);
  // Readable once it is dead; -1: nothing tells.
  int pidfd() const { return pidfd_; }

 private:
  int pidfd_ = -1;
  int number_ = 0;  // as /proc numbers it; 0: not seen
  bool gone_ = false;
};

}  // namespace powerccl::agent
