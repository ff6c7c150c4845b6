// SPDX-License-Identifier: Apache-2.0
// What a policy that learns has come to, as a record of the trace. Other policies have none.
#ifndef POWERCCL_CLOCK_BUDGET_RECORD_H
#define POWERCCL_CLOCK_BUDGET_RECORD_H
#include <stdint.h>

#include "abi/trace.h"
#include "policy/clock_policy.h"
#include "record/trace_writer.h"

namespace powerccl {

// So often while the job runs, for whoever watches it, and for a job that is killed; once more at its end.
constexpr uint64_t kRecordBudgetEveryNs = 10000000000u;

// What has come of it by then.
powerccl_trace_record budget_record(const ClockPolicy::State& state, uint64_t time_ns);
void record_budget(TraceWriter* trace, ClockPolicy* policy);

}  // namespace powerccl
#endif
