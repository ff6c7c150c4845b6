// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "abi/host_clock.h"

namespace powerccl::daemon {

inline int64_t now_ns() {
  return read_clock_ns(CLOCK_MONOTONIC);
}

}  // namespace powerccl::daemon
