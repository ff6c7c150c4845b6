// SPDX-License-Identifier: Apache-2.0
// Who carries out a change of clock. `dry` is here, `lease` is in lease_client.h. A client belongs to one GPU, and
// is used by its clock thread alone.
#ifndef POWERCCL_CLOCK_CLOCK_CLIENT_H
#define POWERCCL_CLOCK_CLOCK_CLIENT_H
#include <stdint.h>

namespace powerccl {

// What the functions of a client with a grant may return besides the driver's codes. Nothing was set, and what was set
// before is undone by who granted it. No failure: clocks can be set again under the next grant.
constexpr int kClockNotNow = -100;

// What the trace says when a grant is gone.
constexpr char kLeaseLostNote[] = "clock lease lost: GPU at its default clock";

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
  // For a client that something else grants its clocks to; all null: a clock can be set at any time, and stays.
  // Looks after the grant: called whenever the clock thread has nothing better to do, and no later than the nanoseconds
  // that it returned. May take a fifth of a second.
  uint64_t (*tick)(void* self) = nullptr;
  // The grant that clocks are set under now, 0 if there is none. What was set under another one has been undone.
  uint64_t (*grant)(void* self) = nullptr;
  // How long the granter would make a set to that clock wait, its rate being limited. A wish is kept back so long: what
  // is wished for meanwhile, the default above all, must not queue behind it.
  uint64_t (*delay)(void* self, uint32_t max_mhz) = nullptr;
  // Nothing more will be asked.
  void (*close)(void* self) = nullptr;
  bool dry = true;     // set and reset call nothing
  bool speaks = true;  // the user is told when clocks are left alone from some moment on
};

// Decides nothing and calls nothing: set and reset succeed at once.
ClockClient dry_clock_client();

}  // namespace powerccl
#endif
