// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/call_accounts.h"

#include "record/records.h"

namespace powerccl {

void CallAccounts::flush(TraceWriter& trace, const TickClock& clock, uint16_t thread, uint64_t time_ns) {
  for (Entry& entry : entries_) {
    if (entry.key == 0 || entry.calls == entry.written_calls) continue;
    entry.written_calls = entry.calls;
    powerccl_trace_record record = new_record(POWERCCL_REC_MPI_TOTAL, static_cast<uint32_t>(entry.key >> 24));
    auto& total = record.mpi_total;
    total.time_ns = time_ns;
    total.calls = entry.calls;
    total.bytes = entry.bytes;
    total.call_ns = clock.length_ns(entry.call_ticks);
    total.wait_ns = clock.length_ns(entry.wait_ticks);
    total.sleep_ns = clock.length_ns(entry.sleep_ticks);
    total.function = static_cast<uint16_t>(entry.key >> 8);
    total.thread = thread;
    total.size_class = static_cast<uint8_t>((entry.key & 0xff) - 1);
    trace.append(record);
  }
}

}  // namespace powerccl
