// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <ctime>

namespace powerccl::daemon {

inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace powerccl::daemon
