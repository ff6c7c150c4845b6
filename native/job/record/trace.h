// SPDX-License-Identifier: Apache-2.0
// Where records go: a job's trace writer, or the file of a simulated rank. The base drops them.
#pragma once
#include "abi/trace.h"

namespace powerccl {

class Trace {
 public:
  // Copies the record into the trace; its kind must not be 0. False: dropped.
  virtual bool append([[maybe_unused]] const powerccl_trace_record& record) { return false; }

 protected:
  ~Trace() = default;
};

}  // namespace powerccl
