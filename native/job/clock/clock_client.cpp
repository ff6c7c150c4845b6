// SPDX-License-Identifier: Apache-2.0
#include "clock/clock_client.h"

namespace powerccl {

ClockClient dry_clock_client() {
  ClockClient client;
  client.set = [](void*, uint32_t, uint32_t) { return 0; };
  client.reset = [](void*) { return 0; };
  client.dry = true;
  return client;
}

}  // namespace powerccl
