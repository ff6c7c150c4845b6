// SPDX-License-Identifier: Apache-2.0
// The file behind a trace (abi/trace.h), written by one thread with descriptors of its own (own_thread.h). It is never
// mapped: a store to the mapping of a truncated file would end the job. Each write is preceded by a look whether the
// file is still this one and still whole; on any doubt nothing is written.
//
// All calls go to the kernel by number. Libraries that interpose libc's functions for files know descriptors by
// their numbers, and this thread's numbers mean other files.
#pragma once
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/trace.h"

namespace powerccl {

class RecordFile {
 public:
  // What ended the writing: an errno value or one of these.
  enum Fault : int { kDeleted = -1, kCut = -2 };

  // Creates `path`, which must not exist, with this header. Returns 0 or an errno value; then there is no file.
  int create(const char* path, const powerccl_trace_header& header);

  // Adds records, then states their number in the header. Returns 0 or a fault; `*written` of them are in the file.
  int append(const powerccl_trace_record* records, uint64_t count, uint64_t* written);
  // Puts a record in the place of the last one. False: there is none, or it cannot be written.
  bool replace_last(const powerccl_trace_record& record);
  // States how many records were dropped, and what our own work has taken.
  int count_dropped(uint64_t dropped);
  int state_own();

  void close();
  // create() came too late to be of use.
  void remove();

  uint64_t records() const { return records_; }

 private:
  int check() const;
  int write(const void* data, uint64_t bytes, uint64_t at, uint64_t* done);
  int write_counters(uint64_t committed, uint64_t dropped);

  char path_[PATH_MAX + 64] = "";
  int descriptor_ = -1;
  uint64_t device_ = 0, inode_ = 0;
  uint64_t records_ = 0, dropped_ = 0, own_ns_ = 0;
};

// What a fault is called in a message. Returns text in `buffer` or constant text.
const char* fault_text(int fault, char* buffer, size_t size);
// The place has no room for more.
bool is_full(int fault);

}  // namespace powerccl
