// SPDX-License-Identifier: Apache-2.0
#include "runtime/budget_record.h"

#include "runtime/basics.h"

namespace powerccl {

void record_budget(TraceWriter* trace, ClockPolicy* conductor) {
  const ClockPolicy::State state = conductor->state();
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_BUDGET;
  auto& budget = record.budget;
  budget.time_ns = monotonic_ns();
  budget.calls = state.period;
  budget.iterations = static_cast<uint32_t>(state.iterations);
  budget.managed = static_cast<uint32_t>(state.managed);
  budget.windows = state.windows;
  budget.length_us = static_cast<uint32_t>(state.length_ns / 1000);
  budget.covered_us = static_cast<uint32_t>(state.covered_ns / 1000);
  budget.short_us = static_cast<uint32_t>(state.too_short_ns / 1000);
  budget.judged = state.judged;
  budget.marked = state.marked;
  budget.paused = state.paused;
  budget.clock_mhz = state.clock_mhz;
  budget.policy = static_cast<uint8_t>((state.windows > 0 ? 1 : 0) | (state.clocks_tried > 0 ? 2 : 0));
  if (state.judged) {
    budget.slowdown_ppm = static_cast<int32_t>(state.slowdown.estimate * 1e6);
    budget.low_ppm = static_cast<int32_t>(state.slowdown.low * 1e6);
    budget.high_ppm = static_cast<int32_t>(state.slowdown.high * 1e6);
  }
  trace->append(record);
}

}  // namespace powerccl
