// SPDX-License-Identifier: Apache-2.0
#include "clock/budget_record.h"

#include "base/basics.h"

namespace powerccl {

powerccl_trace_record budget_record(const ClockPolicy::State& state, uint64_t time_ns) {
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_BUDGET;
  auto& budget = record.budget;
  budget.time_ns = time_ns;
  budget.calls = state.period;
  budget.iterations = static_cast<uint32_t>(state.iterations);
  budget.managed = static_cast<uint32_t>(state.managed);
  budget.length_us = static_cast<uint32_t>(state.length_ns / 1000);
  budget.judged = state.judged;
  budget.clock_mhz = state.clock_mhz;
  if (state.judged) {
    budget.slowdown_ppm = static_cast<int32_t>(state.slowdown.estimate * 1e6);
    budget.low_ppm = static_cast<int32_t>(state.slowdown.low * 1e6);
    budget.high_ppm = static_cast<int32_t>(state.slowdown.high * 1e6);
  }
  return record;
}

void record_budget(TraceWriter* trace, ClockPolicy* policy) {
  if (policy->learns()) trace->append(budget_record(policy->state(), monotonic_ns()));
}

}  // namespace powerccl
