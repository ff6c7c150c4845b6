// SPDX-License-Identifier: Apache-2.0
// Appends records to a rank's trace (wire/trace.h). Any number of threads append; none waits for another.
//
// The whole limit is mapped at once, so that records never move; the file grows under the mapping in chunks whose
// blocks are really allocated, so that a full disk is an error here and not a SIGBUS in the job. A record's `kind` is
// stored last; whoever finishes a record moves `committed` over the finished prefix.
#ifndef POWERCCL_RUNTIME_TRACE_WRITER_H
#define POWERCCL_RUNTIME_TRACE_WRITER_H
#include <stdint.h>

#include <atomic>

#include "runtime/basics.h"
#include "wire/trace.h"

namespace powerccl {

class TraceWriter {
 public:
  static constexpr uint64_t kChunkBytes = 1u << 20;

  TraceWriter() = default;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Creates `path`, which must not exist, and writes `header` (magic, version, sizes and counters are filled in here).
  // Returns 0 or an errno value; EEXIST: somebody else's trace.
  int open(const char* path, const powerccl_trace_header& header, uint64_t limit_bytes);

  bool is_open() const { return open_.load(std::memory_order_acquire); }

  // Copies the record into the trace; its kind must not be 0. False: dropped, and counted.
  bool append(const powerccl_trace_record& record);

  // Appends a NOTE, cut to what fits.
  void note(const char* text);

  // Unmaps the file; what is committed stays readable. Only for when nobody can append any more: a forked child (its
  // parent's file is then left alone) and tests. A job's trace stays open until the process ends.
  void close();

  uint64_t committed() const;
  uint64_t dropped() const;

 private:
  bool grow(uint64_t index);
  void publish(uint64_t index, uint16_t kind);

  std::atomic<bool> open_{false};
  powerccl_trace_header* header_ = nullptr;
  powerccl_trace_record* records_ = nullptr;
  uint64_t limit_records_ = 0;
  std::atomic<uint64_t> next_{0};       // the next record to reserve
  std::atomic<uint64_t> allocated_{0};  // records whose blocks exist
  std::atomic<bool> full_{false};       // growing failed or the limit is reached: nothing more is reserved
  std::atomic<bool> complained_{false};
  SpinLock growing_;
  int descriptor_ = -1;
};

}  // namespace powerccl
#endif
