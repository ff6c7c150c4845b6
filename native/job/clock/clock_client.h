// SPDX-License-Identifier: Apache-2.0
// What carries out a change of clock. `dry` is here, `lease` is in lease_client.h. A client belongs to one GPU, and
// is used by its clock thread alone.
#pragma once
#include <stdint.h>

#include "base/basics.h"
#include "policy/clock_policy.h"

namespace powerccl {

// What the functions of a client with a grant may return besides the driver's codes. Nothing was set, and what was set
// before is undone by the granter. No failure: clocks can be set again under the next grant.
constexpr int kClockNotNow = -100;

// The base decides nothing and calls nothing: set and reset succeed immediately. Functions that return an int return 0
// or the driver's error code, and may take milliseconds.
class ClockClient {
 public:
  // CLOCK_MONOTONIC, in ns. The simulator's clients have a clock of their own.
  virtual uint64_t now_ns() const { return monotonic_ns(); }

  // Locks the SM clock. Whatever marks are needed to have it undone later are made first.
  virtual int set([[maybe_unused]] uint32_t mhz) { return 0; }
  virtual int reset() { return 0; }
  // What the device says of itself now; only where it can be read.
  virtual bool can_read() const { return false; }
  virtual int read([[maybe_unused]] ClockPolicy::Reading* reading) { return kClockNotNow; }
  // What to tell the user about an error code: text and hint, constant or owned by the client. Null: no more is known.
  virtual const char* explain([[maybe_unused]] int code, [[maybe_unused]] const char** hint) { return nullptr; }

  // For a client whose clocks are granted by a daemon. Elsewhere a clock can be set at any time, and stays.
  // Looks after the grant: called whenever the clock thread has nothing better to do, and no later than the nanoseconds
  // that it returned. May take a fifth of a second.
  virtual uint64_t tick() { return UINT64_MAX; }
  // The grant that clocks are set under now, 0 if there is none. What was set under another one has been undone.
  virtual uint64_t grant() const { return 1; }
  // How long the granter would make a set to that clock wait, its rate being limited. A wish is kept back so long: what
  // is wished for meanwhile, the default above all, must not queue behind it.
  virtual uint64_t delay_ns([[maybe_unused]] uint32_t mhz) const { return 0; }
  // Nothing more will be asked.
  virtual void close() {}

  virtual bool dry() const { return true; }  // set and reset call nothing

 protected:
  ~ClockClient() = default;
};

class DryClockClient final : public ClockClient {};

// How long a clock waits that is no rise and not the default, where the granter limits the rate of such changes.
class LoweringLimit {
 public:
  void asked(uint32_t mhz, uint64_t now_ns) {
    if (mhz != 0 && (mhz_ == 0 || mhz <= mhz_)) lowered_ns_ = now_ns;
    mhz_ = mhz;
  }
  uint64_t delay_ns(uint32_t mhz, uint64_t now_ns, uint64_t interval_ns) const {
    if ((mhz_ != 0 && mhz > mhz_) || lowered_ns_ == 0) return 0;
    return lowered_ns_ + interval_ns > now_ns ? lowered_ns_ + interval_ns - now_ns : 0;
  }

 private:
  uint64_t lowered_ns_ = 0;  // when a lower clock was asked for last; 0: never
  uint32_t mhz_ = 0;         // what is set; 0: the default
};

}  // namespace powerccl
