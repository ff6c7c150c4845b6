// SPDX-License-Identifier: Apache-2.0
// The clock journal (abi/journal.h): marking a GPU before its clock is locked, so that the agent can undo it.
//
// Order for a locker: journal_claim once, then for each lock journal_mark, clock_lock ... clock_reset, journal_clear.
// Without a mark no clock is set. When clock_reset fails, leave the mark: the agent tries again once the process is
// gone.
#ifndef POWERCCL_DEVICE_CLOCK_JOURNAL_H
#define POWERCCL_DEVICE_CLOCK_JOURNAL_H
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/journal.h"
#include "device/error.h"

namespace powerccl::device {

// A program may close every descriptor that it has and be given the number again, so before each use the descriptor is
// shown to be the journal's, and opened again by its name where it is not.
struct Journal {
  int fd = -1;
  uint64_t device = 0;  // of the file
  uint64_t inode = 0;
  uint64_t mine[POWERCCL_JOURNAL_SLOTS / 64] = {};  // slots that this process has locked through it
  int busy = 0;                                     // a thread claims, releases or opens again
  char path[PATH_MAX] = "";
};

// A device's slot, held by this process.
struct JournalClaim {
  Journal* journal = nullptr;  // null: nothing is held
  unsigned index = 0;
  powerccl_journal_slot slot = {};
};

// Creates the run folder's journal of this host or opens the one that is there. Its blocks are allocated at once, so
// that a full disk is an error here and not at the first mark.
int journal_open(Journal* journal, const char* run_folder, Error* error);
// The same for an existing file only; nothing is created.
int journal_open_existing(Journal* journal, const char* run_folder, Error* error);
// Also for a forked child: its parent's locks stay, and the child's copy no longer keeps them once the parent is gone.
void journal_close(Journal* journal);

// Takes a slot for `device` in this process's name. kOwned: another live process has the GPU (its pid is in the
// text).
int journal_claim(Journal* journal, const char* device, JournalClaim* claim, Error* error);
// Gives the slot back. A slot still marked is left as it is, for the agent.
void journal_release(JournalClaim* claim);

int journal_mark(JournalClaim* claim, Error* error);   // before the clock is locked, which a failure here forbids
int journal_clear(JournalClaim* claim, Error* error);  // after it has been reset

// For whoever undoes what others left. False where the file was cut short; the slot is then all zero.
bool journal_read_slot(Journal* journal, unsigned index, powerccl_journal_slot* slot);
bool journal_read(Journal* journal, powerccl_journal* copy);
int journal_write_slot(Journal* journal, unsigned index, const powerccl_journal_slot& slot, Error* error);
// Whether somebody holds the lock on a slot's bytes: the process that claimed it, or a copy of its descriptor.
bool journal_slot_locked(Journal* journal, unsigned index);
// Whether the claimer lives, as far as a process of any namespace can tell: by the lock, or by /proc where it is the
// claimer's namespace too.
bool journal_owner_alive(Journal* journal, unsigned index, const powerccl_journal_slot& slot);

}  // namespace powerccl::device
#endif
