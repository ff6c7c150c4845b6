// SPDX-License-Identifier: Apache-2.0
// Appends records to a rank's trace (abi/trace.h). Any number of threads append; none waits for another, and none
// makes a system call.
//
// Records go into a ring in private memory. A thread of ours writes them to the file (record_file.h), with descriptors
// of its own. The job's changes to its descriptors do not reach the trace, and changes to the file do not reach the
// job. A record's `kind` is stored last; the thread takes the finished ones in front.
#pragma once
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include <atomic>

#include "abi/trace.h"
#include "base/basics.h"
#include "record/trace.h"

namespace powerccl {

class TraceWriter final : public Trace {
 public:
  // 4 MiB. What is recorded while the thread cannot write is kept here: 6 s of 10,000 records a second. Half of it
  // would last 3 s; twice as much would cost each rank 4 MiB more of memory.
  static constexpr uint64_t kRingRecords = 65536;
  // A limit below this many records is raised to it.
  static constexpr uint64_t kLeastLimitRecords = 16384;

  TraceWriter() = default;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Creates `path`, which must not exist, and writes `header` (magic, version, sizes and counters are filled in here).
  // Returns 0 or an errno value; EEXIST: another process's trace.
  int open(const char* path, const powerccl_trace_header& header, uint64_t limit_bytes);

  bool is_open() const { return ring_.load(std::memory_order_acquire) != nullptr; }

  // What is dropped is counted.
  bool append(const powerccl_trace_record& record) override;

  // Appends a NOTE, cut to what fits.
  void note(const char* text);

  // Has all that was appended before written to the file. False: it was not, in time. A process waits so for two
  // seconds in all its life, since a file system that hangs must not hold a job's end.
  bool flush();

  // Writes what is left and ends the thread. Only when no thread can append any more: a forked child (which has no
  // thread, and leaves its parent's file alone) and tests. A job's trace stays open until the process ends.
  void close();

  // The same while others may still append, and while the process may have forked: `why` becomes the last record.
  // Nothing of this trace makes a system call afterwards. What is appended later is lost without a word.
  void end(const char* why);

  // What the file has.
  uint64_t committed() const;
  uint64_t dropped() const;

 private:
  struct Ring;
  static void* thread_main(void* ring);
  static void record(void* ring);
  static bool refuse(Ring* ring);
  static void complain(Ring* ring);

  std::atomic<Ring*> ring_{nullptr};
};

// Under which name a trace is begun.
// <kind>-<rank>.trace; where that is taken (a rank that runs, or one that was restarted), the process number is added,
// and where processes of several namespaces share that, a count. What is there is never written over. `alone`: the
// first name may be this process's. `path` is left at the name tried last. Returns 0 or an errno value.
inline int open_named_trace(TraceWriter* trace, const char* folder, const char* kind, bool alone,
                            const powerccl_trace_header& header, uint64_t limit_bytes, char* path, size_t size) {
  constexpr int kMost = 100000;  // files of one rank: a folder that takes no name must not be asked for ever
  int error = EEXIST;
  for (int attempt = alone ? 0 : 1; attempt < kMost && error == EEXIST; ++attempt) {
    int length = 0;
    if (attempt == 0) length = snprintf(path, size, "%s/%s-%d.trace", folder, kind, header.rank);
    if (attempt == 1) length = snprintf(path, size, "%s/%s-%d.%u.trace", folder, kind, header.rank, header.pid);
    if (attempt > 1)
      length = snprintf(path, size, "%s/%s-%d.%u.%d.trace", folder, kind, header.rank, header.pid, attempt - 1);
    if (length < 0 || static_cast<size_t>(length) >= size) return ENAMETOOLONG;
    error = trace->open(path, header, limit_bytes);
  }
  return error;
}

// What to do about a trace that could not be begun.
inline const char* trace_hint(int error) {
  if (error == EAGAIN) return "raise the job's limit on threads (ulimit -u, or the pids limit of its container)";
  return "free some space, or set POWERCCL_RUN_FOLDER to a folder that the job may write to";
}

}  // namespace powerccl
