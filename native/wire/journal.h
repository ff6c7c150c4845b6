// SPDX-License-Identifier: Apache-2.0
// The clock journal: which GPUs and processor cores of this host have another clock because of us, so that somebody
// else can undo it.
//
// Locked clocks outlive the process that set them and cannot be read back. Whoever sets one therefore first marks the
// device's slot in `clocks-<host>.journal` of the run folder, a file mapped by the ranks and by powerccl-agent. The
// agent resets a marked GPU when the marking process has died, and all of them when the job has ended. A slot is
// claimed by compare-and-swap of `pid` from 0; `state` is stored with release before the device is touched.
#ifndef POWERCCL_WIRE_JOURNAL_H
#define POWERCCL_WIRE_JOURNAL_H
#include <stdint.h>

#define POWERCCL_JOURNAL_MAGIC "PWRCCLJR"
#define POWERCCL_JOURNAL_VERSION 2u
#define POWERCCL_JOURNAL_SLOTS 512u

enum powerccl_journal_state {
  POWERCCL_CLOCK_DEFAULT = 0,  // nothing of ours is set
  POWERCCL_CLOCK_LOCKED = 1,   // set, or about to be
};

struct powerccl_journal_slot {
  char device[48];             // a GPU's UUID, or "cpu3@2800000": a core and the clock in kHz to go back to
  uint32_t state;              // powerccl_journal_state
  uint32_t pid;                // the process that set it; 0: the slot is free
  uint64_t pid_start_ticks;    // field 22 of /proc/<pid>/stat, against reuse of the number
  uint64_t changed_ns;         // CLOCK_MONOTONIC
  uint32_t restored_by_agent;  // how often the agent had to undo it
  uint32_t reserved;
};

struct powerccl_journal {
  char magic[8];
  uint32_t version;
  uint32_t slots;
  struct powerccl_journal_slot slot[POWERCCL_JOURNAL_SLOTS];
};

#ifdef __cplusplus
static_assert(sizeof(struct powerccl_journal_slot) == 80, "the slot is the format");
#endif
#endif
