// SPDX-License-Identifier: Apache-2.0
// One thread's sums of blocking calls by function, communicator and size class, written to the trace from time to time
// (MPI_TOTAL records). A fixed table; what finds no room is counted and left out.
#pragma once
#include <stdint.h>

#include "adapters/mpi/ticks.h"
#include "record/trace_writer.h"

namespace powerccl {

struct CallMade {
  uint16_t function = 0;
  uint32_t comm = 0;
  uint64_t bytes = 0;
  uint64_t call_ticks = 0, wait_ticks = 0, sleep_ticks = 0;
};

// 0: no bytes, else 1 + floor(log2(bytes)).
inline uint8_t size_class_of(uint64_t bytes) {
  return bytes == 0 ? 0 : static_cast<uint8_t>(64 - __builtin_clzll(bytes));
}

class CallAccounts {
 public:
  // Kinds of calls of one thread; half of the entries are used. Calls of more kinds are left out, and counted as that.
  static constexpr uint32_t kEntries = 512;

  void add(const CallMade& call) {
    const uint8_t size_class = size_class_of(call.bytes);
    const uint64_t key = 1 + size_class + (uint64_t{call.function} << 8) + (uint64_t{call.comm} << 24);
    uint32_t at = static_cast<uint32_t>((key * 0x9e3779b97f4a7c15u) >> 55);
    for (uint32_t tried = 0; tried < kEntries; ++tried, at = (at + 1) % kEntries) {
      Entry& entry = entries_[at];
      if (entry.key != key) {
        if (entry.key != 0) continue;
        if (used_ == kEntries / 2) break;  // probing stays short
        ++used_;
        entry.key = key;
      }
      ++entry.calls;
      entry.bytes += call.bytes;
      entry.call_ticks += call.call_ticks;
      entry.wait_ticks += call.wait_ticks;
      entry.sleep_ticks += call.sleep_ticks;
      return;
    }
    ++left_out_;
  }

  // Appends what has changed since the last time.
  void flush(TraceWriter& trace, const TickClock& clock, uint16_t thread, uint64_t time_ns);

  uint64_t left_out() const { return left_out_; }

 private:
  struct Entry {
    uint64_t key = 0;  // 0: unused
    uint64_t calls = 0, bytes = 0, call_ticks = 0, wait_ticks = 0, sleep_ticks = 0;
    uint64_t written_calls = 0;
  };
  Entry entries_[kEntries];
  uint32_t used_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace powerccl
