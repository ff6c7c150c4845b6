// SPDX-License-Identifier: Apache-2.0
// What every clock policy that decides by what runs is told of one GPU, and what it answers. Time is an argument: the
// clock thread of a job and the simulator drive the same code. All times are CLOCK_MONOTONIC in ns.
#ifndef POWERCCL_POLICY_CLOCK_POLICY_H
#define POWERCCL_POLICY_CLOCK_POLICY_H
#include <stdint.h>

#include "policy/trial.h"

namespace powerccl {

// The base wants the default clock, whatever it is told.
class ClockPolicy {
 public:
  // From any thread, as things happen. True: the clock thread has to look again. `kind` is the same for calls that do
  // the same; `mhz` is the least clock that keeps the call's bandwidth, as far as a profile tells, else 0.
  virtual void called([[maybe_unused]] uint64_t call, [[maybe_unused]] uint32_t kind, [[maybe_unused]] uint32_t mhz) {}
  // The same of an all-to-all in which this rank receives so many bytes; all ranks of it give it the same key.
  virtual void all_to_all_called(uint64_t call, uint32_t kind, uint32_t mhz, [[maybe_unused]] uint32_t key,
                                 [[maybe_unused]] uint64_t received) {
    called(call, kind, mhz);
  }
  // The same of a graph of whatever the job put into it, and of communication captured in one, when it is about to
  // run: then it has this number; 0: of no interest.
  virtual void graph_called([[maybe_unused]] uint64_t call, [[maybe_unused]] uint32_t kind) {}
  virtual uint64_t captured_begins([[maybe_unused]] uint32_t kind, [[maybe_unused]] uint32_t mhz) { return 0; }
  virtual bool started([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t start_ns) { return false; }
  virtual bool stopped([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t stop_ns) { return false; }
  virtual void waited([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t stall_ns) {}

  // The clock is left alone until the next call: the communicators are gone.
  virtual void rest() {}

  // The clock thread's part.
  struct Wanted {
    uint32_t mhz = 0;       // 0: the default
    uint64_t until_ns = 0;  // look again then at the latest, or when something happened
    uint64_t call = 0;      // because of which
  };
  static constexpr uint64_t kFarNs = 3600ull * 1000000000u;
  virtual Wanted wanted(uint64_t now_ns) { return {0, now_ns + kFarNs, 0}; }
  // The clock thread has done what was wanted; the device call began and ended then.
  virtual void carried_out([[maybe_unused]] uint32_t mhz, [[maybe_unused]] uint64_t begin_ns,
                           [[maybe_unused]] uint64_t end_ns) {}
  // A new clock was seen to arrive, so long after its call at least and at most. Wanted while few were seen.
  virtual void arrived([[maybe_unused]] uint64_t least_ns, [[maybe_unused]] uint64_t most_ns,
                       [[maybe_unused]] bool precise) {}
  virtual bool wants_arrivals() const { return false; }
  // And took so much of a core, on average.
  virtual void took_of_core([[maybe_unused]] double ns) {}
  // Where the clock is now.
  virtual bool wants_sample() const { return false; }
  virtual void sampled([[maybe_unused]] uint32_t mhz) {}

  // What it has come to, for the trace and the summary.
  struct State {
    uint32_t period = 0;  // calls of an iteration; 0: not known
    uint32_t windows = 0;
    uint64_t iterations = 0, managed = 0;
    double length_ns = 0, covered_ns = 0, too_short_ns = 0;  // of an iteration
    bool marked = false, paused = false;
    uint32_t clock_mhz = 0;  // outside of windows; 0: the default
    uint32_t clocks_tried = 0;
    bool judged = false;  // there is a slowdown to tell
    Trial::Interval slowdown{};
  };
  virtual State state() { return {}; }

 protected:
  ~ClockPolicy() = default;
};

}  // namespace powerccl
#endif
