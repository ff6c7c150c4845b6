// SPDX-License-Identifier: Apache-2.0
// The clock journal: which processor cores of this host an MPI rank has lowered, so that the agent can restore them.
//
// A core's clock limit outlives the process that set it. A rank therefore first marks the core's slot in the run
// folder's `clocks-<boot>.journal`. The agent restores a marked core when the marking process has died. <boot> is the
// kernel's boot id, its first twelve digits: host names repeat, and a container may have one of its own, but whoever
// shares a kernel shares its cores' clocks. GPUs are not in it: powerccld sets their clocks (docs/decisions/0008).
//
// Everybody reads and writes the file; nobody maps it, since somebody who cuts it short would kill all who do. An owner
// holds a write lock on its slot's bytes (an open file description lock), which every namespace of the host sees and
// the kernel drops with the process. A job may close our descriptor, so the slot also says who the owner is: its
// process number, start time and PID namespace. Byte 0 is locked while a slot is claimed or the file is made.
#ifndef POWERCCL_ABI_JOURNAL_H
#define POWERCCL_ABI_JOURNAL_H
#include <stdint.h>

#define POWERCCL_JOURNAL_MAGIC "PWRCCLJR"
#define POWERCCL_JOURNAL_VERSION 3u
#define POWERCCL_JOURNAL_SLOTS 512u

enum powerccl_journal_state {
  POWERCCL_CLOCK_DEFAULT = 0,  // nothing of ours is set
  POWERCCL_CLOCK_LOCKED = 1,   // set, or about to be
};

struct powerccl_journal_slot {
  char device[48];             // "cpu3@2800000": a core, and the clock in kHz to go back to
  uint32_t state;              // powerccl_journal_state
  uint32_t pid;                // the process that set it, as its own PID namespace numbers it; 0: the slot is free
  uint64_t pid_start_ticks;    // field 22 of its /proc/self/stat, against reuse of the number; 0: not known
  uint64_t pid_namespace;      // inode of its /proc/self/ns/pid; 0: not known
  uint64_t changed_ns;         // CLOCK_MONOTONIC
  uint32_t restored_by_agent;  // how often the agent had to undo it
  uint32_t reserved;
};

struct powerccl_journal {
  char magic[8];
  uint32_t version;
  uint32_t slots;
  char host[64];  // the name of the host for whoever made the file
  struct powerccl_journal_slot slot[POWERCCL_JOURNAL_SLOTS];
};

#ifdef __cplusplus
static_assert(sizeof(struct powerccl_journal_slot) == 88, "the slot is the format");
static_assert(sizeof(struct powerccl_journal) == 80 + 88 * POWERCCL_JOURNAL_SLOTS, "the file is the format");
#endif
#endif
