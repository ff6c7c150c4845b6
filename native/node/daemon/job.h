// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "daemon/driver.h"

namespace powerccl::daemon {

// One call of the driver.
struct Job {
  enum Kind { kSet, kRestore, kRead } kind = kRead;
  size_t device = 0;
  uint32_t min_mhz = 0, max_mhz = 0;
  // Whom to answer, and with what beside the outcome; session 0: no session.
  uint64_t session = 0, serial = 0, lease = 0;
  uint32_t flags = 0, interval_ms = 0;
};

struct Done {
  Job job;
  Outcome outcome;
};

}  // namespace powerccl::daemon
