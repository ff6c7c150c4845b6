// SPDX-License-Identifier: Apache-2.0
// Who carries out a change of clock. `none` and `dry` are here; `nvml` is handed in by the door, because nothing of
// NVIDIA's is known in this room. A client belongs to one GPU and is used by that GPU's clock thread alone.
#ifndef POWERCCL_RUNTIME_CLOCK_CLIENT_H
#define POWERCCL_RUNTIME_CLOCK_CLIENT_H
#include <stdint.h>

namespace powerccl {

// A table of functions rather than a class, so that a C-style neighbour can fill it in. Every function returns 0 or the
// driver's error code and may take milliseconds.
struct ClockClient {
  void* self = nullptr;
  // Locks the SM clock between the two. Whatever marks are needed to have it undone later are made first.
  int (*set)(void* self, uint32_t min_mhz, uint32_t max_mhz) = nullptr;
  int (*reset)(void* self) = nullptr;
  // The SM clock now; null: cannot be read.
  int (*read)(void* self, uint32_t* mhz) = nullptr;
  // What to tell the user about an error code: text and hint, constant or owned by the client.
  const char* (*explain)(void* self, int code, const char** hint) = nullptr;
  bool dry = true;  // set and reset call nothing
};

// Decides nothing and calls nothing: set and reset succeed at once.
ClockClient dry_clock_client();

}  // namespace powerccl
#endif
