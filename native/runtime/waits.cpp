// SPDX-License-Identifier: Apache-2.0
// Where computation waited for communication: what is exposed, as the job's own streams tell it.
#include "runtime/runtime.h"

namespace powerccl {

void Runtime::computation_waited(Communicator* communicator, Handle call, uint64_t stream, uint64_t stall_ns,
                                 uint64_t resume_ns) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return;
  if (kind_of(call) != HandleKind::kCall || resume_ns < stall_ns) return;
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_WAIT;
  record.comm = communicator->index;
  record.wait.call_id = serial_of(call);
  record.wait.stall_ns = stall_ns;
  record.wait.resume_ns = resume_ns;
  record.wait.stream = stream;
  communicator->gpu->trace.append(record);
}

}  // namespace powerccl
