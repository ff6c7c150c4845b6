// SPDX-License-Identifier: Apache-2.0
// A machine whose clock moves only when something on it takes time: 2 ticks a nanosecond.
#pragma once
#include <vector>

#include "adapters/mpi/wait_methods.h"

namespace powerccl {

constexpr uint64_t kUs = 2000;  // ticks

struct FakeMachine {
  uint64_t clock = 1000000;
  uint64_t overshoot = 17 * kUs;  // of a sleep
  size_t late_every = 0;          // of so many sleeps one is late by `late_by` more
  uint64_t late_by = 0;
  uint64_t tpause_limit = 38 * kUs;
  uint64_t call_takes = kUs / 8;
  uint64_t yield_takes = kUs / 2;
  uint64_t event_period = 0;  // of the events that end a WFE; 0: it is a no-op, as under emulation
  bool traps_mwaitx = false;  // as some hypervisors: a no-op of 5 us that ignores its timer
  uint64_t slack_ns = 50000;
  std::vector<uint64_t> pauses;  // ticks asked for, of instructions
  std::vector<uint64_t> sleeps;  // ticks asked for
  int yields = 0, tpauses = 0, mwaitxs = 0, wfes = 0;

  WaitTable table() {
    WaitTable table;
    table.ticks_per_us = kUs;
    table.context = this;
    table.now = [](void* self) { return of(self).clock; };
    table.tpause = [](void* self, uint64_t deadline) {
      FakeMachine& machine = of(self);
      ++machine.tpauses;
      const uint64_t most = machine.clock + machine.tpause_limit;
      if (deadline > machine.clock) machine.pauses.push_back(deadline - machine.clock);
      if (deadline > machine.clock) machine.clock = deadline < most ? deadline : most;
    };
    table.mwaitx = [](void* self, uint32_t most) {
      FakeMachine& machine = of(self);
      ++machine.mwaitxs;
      machine.pauses.push_back(most);
      machine.clock += machine.traps_mwaitx ? 5 * kUs : most;
    };
    table.wfe = [](void* self, uint64_t) {
      FakeMachine& machine = of(self);
      ++machine.wfes;
      const uint64_t period = machine.event_period;
      machine.clock += period == 0 ? kUs / 100 : period - machine.clock % period;
    };
    table.sleep = [](void* self, uint64_t length_ns) {
      FakeMachine& machine = of(self);
      machine.sleeps.push_back(2 * length_ns);
      machine.clock += 2 * length_ns + machine.overshoot;
      if (machine.late_every != 0 && machine.sleeps.size() % machine.late_every == 0) machine.clock += machine.late_by;
    };
    table.yield = [](void* self) {
      ++of(self).yields;
      of(self).clock += of(self).yield_takes;
    };
    table.empty_call = [](void* self) { of(self).clock += of(self).call_takes; };
    table.slack = [](void* self, uint64_t slack) {
      const uint64_t before = of(self).slack_ns;
      of(self).slack_ns = slack;
      return before;
    };
    return table;
  }

 private:
  static FakeMachine& of(void* self) { return *static_cast<FakeMachine*>(self); }
};

}  // namespace powerccl
