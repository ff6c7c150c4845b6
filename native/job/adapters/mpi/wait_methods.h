// SPDX-License-Identifier: Apache-2.0
// Ways to wait without spinning: TPAUSE (Intel WAITPKG), MWAITX with its timer (AMD MONITORX), WFE (Arm), timed sleep.
// Only a timed test shows which of them a machine has. Hypervisors hide the instructions, and some turn MWAITX into a
// trapped no-op that ignores its timer.
//
// The instructions, the clock and the system calls are in a table, so that tests can replace them.
#pragma once
#include <stdint.h>

#include "adapters/mpi/ticks.h"
#include "base/environment.h"

namespace powerccl {

enum class WaitMethod : uint8_t { kSpin, kSleep, kUmwait, kMwaitx, kWfe };

struct WaitTable {
  bool has_waitpkg = false;   // CPUID.(7,0):ECX[5]
  bool has_monitorx = false;  // CPUID.80000001h:ECX[29]
  bool has_wfe = false;       // HWCAP_EVTSTRM or HWCAP2_WFXT: an event ends it, whatever other cores do
  double ticks_per_us = 1000.0;
  void* context = nullptr;
  uint64_t (*now)(void* context) = nullptr;
  // Waits in C0.2 until the counter passes `deadline`, or the system's limit (umwait_control/max_time) ends it sooner.
  void (*tpause)(void* context, uint64_t deadline_ticks) = nullptr;
  // Monitors a cache line that no thread writes, so the timer ends the wait.
  void (*mwaitx)(void* context, uint32_t most_ticks) = nullptr;
  // Waits for an event: the deadline where the processor has WFET, else the kernel's event stream, every 100 us or so.
  void (*wfe)(void* context, uint64_t deadline_ticks) = nullptr;
  void (*sleep)(void* context, uint64_t length_ns) = nullptr;
  void (*yield)(void* context) = nullptr;
  void (*empty_call)(void* context) = nullptr;  // into the kernel and back
  // Sets this thread's timer slack and returns what it was.
  uint64_t (*slack)(void* context, uint64_t slack_ns) = nullptr;
};

// The machine's own. `clock` must have begun.
WaitTable machine_wait_table(const TickClock& clock);

// Whether the processor offers the method, and the method waits as long as it is asked to. The test waits 20 us five
// times. Four of the waits must take 0.8 to 1.6 times that, in a single instruction. The test takes 0.2 ms.
bool passes_self_test(const WaitTable& table, WaitMethod method);

// The best that passes where `wish` is kSpin's opposite, auto; `text` says what was chosen and why not another.
struct WaitChoice {
  WaitMethod instruction = WaitMethod::kSpin;  // for short pauses; kSpin: there is none
  bool may_sleep = true;
  uint64_t overshoot_ticks = 0;  // by how much a sleep of 1 us outlasts it here: the least of five
  char text[96] = "";
};
WaitChoice choose_wait_method(const WaitTable& table, WaitWish wish);

// Waits so long with an instruction, again and again if something ends it early.
void pause_with(const WaitTable& table, WaitMethod method, uint64_t length_ticks);

const char* text_of(WaitMethod method);

}  // namespace powerccl
