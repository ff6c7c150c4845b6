// SPDX-License-Identifier: Apache-2.0
// The clock journal (wire/journal.h): marking a GPU before its clock is locked, so that the agent can undo it.
//
// Order for a locker: journal_claim once, then for each lock journal_mark, clock_lock ... clock_reset, journal_clear.
// When clock_reset fails, leave the mark: the agent tries again once the process is gone.
#ifndef POWERCCL_DEVICE_CLOCK_JOURNAL_H
#define POWERCCL_DEVICE_CLOCK_JOURNAL_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "device/error.h"
#include "wire/journal.h"

namespace powerccl::device {

struct Journal {
  powerccl_journal* map = nullptr;
  int fd = -1;
};

// This host's name as run folders spell it in file names (gethostname, '/' replaced).
void host_name(char* name, size_t size);

// Creates <run_folder>/clocks-<host>.journal or maps the one that is there. Its blocks are allocated at once, so that a
// full disk is an error here and not a SIGBUS later.
int journal_open(Journal* journal, const char* run_folder, Error* error);
// The same for an existing file only; nothing is created.
int journal_open_existing(Journal* journal, const char* run_folder, Error* error);
void journal_close(Journal* journal);

// Takes a slot for `device` in this process's name. kOwned: another live process has the GPU (its pid is in the
// text).
int journal_claim(Journal* journal, const char* device, powerccl_journal_slot** slot, Error* error);
// Gives the slot back. A slot still marked is left as it is, for the agent.
void journal_release(powerccl_journal_slot* slot);

void journal_mark(powerccl_journal_slot* slot);   // before the clock is locked
void journal_clear(powerccl_journal_slot* slot);  // after it has been reset

// Field 22 of /proc/<pid>/stat; 0 if there is no such process or it is a zombie.
uint64_t process_start_ticks(pid_t pid);
// Whether the process that claimed the slot still lives. A slot being claimed this moment counts as alive.
bool journal_owner_alive(const powerccl_journal_slot* slot);

}  // namespace powerccl::device
#endif
