// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_EMULATOR_SERVER_TIME_H
#define POWERCCL_EMULATOR_SERVER_TIME_H
#include <time.h>

#include "abi/host_clock.h"
#include "emulator/messages.h"
#include "physics/interfaces.h"

namespace powerccl::emulator {

// On the host's clock: clients in other time namespaces send such times.
inline Time monotonic() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Time>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec - time_shift_ns();
}

}  // namespace powerccl::emulator
#endif
