// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <ctime>

#include "abi/host_clock.h"

namespace powerccl::agent {

inline int64_t read_clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// On the host's clock, also in a time namespace: ranks of the job may be in others.
inline int64_t now_ns() {
  return read_clock_ns(CLOCK_MONOTONIC) - time_shift_ns();
}

}  // namespace powerccl::agent
