// SPDX-License-Identifier: Apache-2.0
// What a clock policy receives about one GPU, and what it answers. Time is an argument: the clock thread of a job and
// the simulator drive the same code. All times are CLOCK_MONOTONIC in ns.
#pragma once
#include <stdint.h>

namespace powerccl {

// The base wants the default clock, whatever it receives.
class ClockPolicy {
 public:
  // From any thread, as things happen. True: the clock thread has to look again. `kind` is the same for calls that do
  // the same.
  virtual void called([[maybe_unused]] uint64_t call, [[maybe_unused]] uint32_t kind) {}
  // The same of a graph of whatever the job put into it.
  virtual void graph_called([[maybe_unused]] uint64_t call, [[maybe_unused]] uint32_t kind) {}
  virtual bool started([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t start_ns) { return false; }
  virtual bool stopped([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t stop_ns) { return false; }
  virtual void waited([[maybe_unused]] uint64_t call, [[maybe_unused]] uint64_t stall_ns) {}

  // The default clock applies until the next call: the communicators are gone.
  virtual void rest([[maybe_unused]] uint64_t now_ns) {}

  // Whether it learns from what runs. Only such a policy has a state to record, and only for it are kernels watched
  // that send no events.
  virtual bool learns() const { return false; }

  // The clock thread's part.
  struct Wanted {
    uint32_t mhz = 0;       // 0: the default
    uint64_t until_ns = 0;  // look again then at the latest, or when something happened
    uint64_t call = 0;      // because of which
    uint64_t asked_ns = 0;  // when that came up; 0: now
    uint64_t wish = 0;      // counts up with each wish of a caller; 0: the policy decides
  };
  static constexpr uint64_t kFarNs = 3600ull * 1000000000u;
  virtual Wanted wanted(uint64_t now_ns) { return {0, now_ns + kFarNs, 0}; }
  // What it wants is not in force, because nothing grants it. Called at each question for which this is so.
  virtual void withheld() {}
  // What the device says of itself now. 0: not known.
  struct Reading {
    uint32_t mhz = 0;       // the SM clock
    uint32_t limit_mw = 0;  // the enforced power limit
    uint64_t reasons = 0;   // why the clock is not higher (NVML's clocks event reasons)
  };
  virtual bool wants_sample() const { return false; }
  virtual void sampled([[maybe_unused]] const Reading& reading) {}

  // What it has come to, for the trace and the summary.
  struct Interval {
    double low, estimate, high;  // slowdown, as a fraction
  };
  struct State {
    uint32_t period = 0;  // calls of an iteration; 0: not known
    uint64_t iterations = 0, managed = 0;
    double length_ns = 0;    // of an iteration
    uint32_t clock_mhz = 0;  // of managed iterations; 0: the default
    bool judged = false;     // there is a slowdown to tell
    Interval slowdown{};
  };
  virtual State state() { return {}; }

 protected:
  ~ClockPolicy() = default;
};

// Nothing is managed.
class Observe final : public ClockPolicy {};

}  // namespace powerccl
