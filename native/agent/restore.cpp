// SPDX-License-Identifier: Apache-2.0
#include "agent/restore.h"

#include <cstdio>
#include <ctime>

#include "agent/clock.h"
#include "agent/guard.h"
#include "agent/log.h"
#include "agent/owner.h"

namespace powerccl::agent {

namespace {

// A process that was killed ends within milliseconds, one with much memory within a second. Half may be too short for
// that one; double only delays the report about a process that really lives.
constexpr int64_t kPatienceNs = 2'000'000'000;

// A process that was killed just now may take a moment to end, all its threads.
bool died(device::Journal* journal, unsigned index, const powerccl_journal_slot& slot, int64_t patience_end_ns) {
  Owner owner;
  owner.find(slot);
  while (!owner.died(journal, index, slot)) {
    if (now_ns() > patience_end_ns) return false;
    const timespec pause = {0, 20'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace

int restore_all(const std::string& run_folder) {
  device::Journal journal;
  device::Error error;
  if (device::journal_open_existing(&journal, run_folder.c_str(), &error) != device::kOk) {
    say("%s\nhint: run this on the job's host, on the run's own folder; a host that was restarted has its clocks "
        "back",
        error.text);
    return 1;
  }
  unsigned marked = 0;
  unsigned failed = 0;
  const int64_t patience_end_ns = now_ns() + kPatienceNs;
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i) {
    powerccl_journal_slot slot;
    if (!device::journal_read_slot(&journal, i, &slot) || slot.state == POWERCCL_CLOCK_DEFAULT) continue;
    ++marked;
    if (!died(&journal, i, slot, patience_end_ns)) {
      say("%s: not restored, because process %u runs and has set its clock\n"
          "hint: end the job, which restores its clocks; then run powerccl-agent --restore-all again",
          slot.device, slot.pid);
      ++failed;
      continue;
    }
    if (int code = restore_core(slot.device, &error); code != device::kOk) {
      say("%s cannot be restored: %s%s", slot.device, error.text, hint_line(code));
      ++failed;
      continue;
    }
    std::printf("%s: restored\n", slot.device);
    ++slot.restored_by_agent;
    slot.state = POWERCCL_CLOCK_DEFAULT;
    slot.pid = 0;
    slot.pid_start_ticks = slot.pid_namespace = 0;
    device::journal_write_slot(&journal, i, slot, nullptr);
  }
  if (marked == 0) std::printf("no clock is marked as set\n");
  device::journal_close(&journal);
  return failed ? 1 : 0;
}

}  // namespace powerccl::agent
