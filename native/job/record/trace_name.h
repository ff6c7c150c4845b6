// SPDX-License-Identifier: Apache-2.0
// Under which name a trace is begun.
#pragma once
#include <errno.h>
#include <stdio.h>

#include "record/trace_writer.h"

namespace powerccl {

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
