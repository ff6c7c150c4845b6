// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/wait_methods.h"

#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>

namespace powerccl {
namespace {

constexpr double kAskedUs = 20.0;  // under the 100000 ticks at which Linux ends a TPAUSE by default
constexpr int kTries = 5, kMustPass = 4;

uint64_t machine_now(void*) {
  return ticks();
}

#if defined(__x86_64__)
// Written as bytes, because the assembler and the compiler's flags must not decide what a machine may have.
void machine_tpause(void*, uint64_t deadline) {
  const uint32_t low = static_cast<uint32_t>(deadline), high = static_cast<uint32_t>(deadline >> 32);
  const uint32_t deepest = 0;                  // C0.2
  asm volatile(".byte 0x66, 0x0f, 0xae, 0xf7"  // tpause %edi
               :
               : "D"(deepest), "a"(low), "d"(high)
               : "cc", "memory");
}

void machine_mwaitx(void*, uint32_t most_ticks) {
  alignas(64) static thread_local char line[64] __attribute__((tls_model("initial-exec")));
  asm volatile(".byte 0x0f, 0x01, 0xfa" : : "a"(line), "c"(0), "d"(0) : "memory");        // monitorx
  asm volatile(".byte 0x0f, 0x01, 0xfb" : : "a"(0), "b"(most_ticks), "c"(2) : "memory");  // mwaitx, C1, timer on
}
#endif

void machine_sleep(void*, uint64_t length_ns) {
  sleep_ns(length_ns);
}

void machine_yield(void*) {
  syscall(SYS_sched_yield);
}

void machine_empty_call(void*) {
  syscall(SYS_getppid);
}

uint64_t machine_slack(void*, uint64_t slack_ns) {
  const int before = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, slack_ns);
  return before > 0 ? static_cast<uint64_t>(before) : 50000;
}

void wait_once(const WaitTable& table, WaitMethod method, uint64_t now, uint64_t length_ticks) {
  if (method == WaitMethod::kUmwait) {
    table.tpause(table.context, now + length_ticks);
  } else {
    table.mwaitx(table.context, length_ticks < UINT32_MAX ? static_cast<uint32_t>(length_ticks) : UINT32_MAX);
  }
}

uint64_t sleep_overshoot(const WaitTable& table) {
  const uint64_t slack = table.slack(table.context, 1);
  uint64_t least = UINT64_MAX;  // others' turns made the rest later: while a job starts, its ranks take many
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = table.now(table.context);
    table.sleep(table.context, 1000);
    const uint64_t took = table.now(table.context) - before;
    const uint64_t asked = static_cast<uint64_t>(table.ticks_per_us);
    const uint64_t over = took > asked ? took - asked : 0;
    if (over < least) least = over;
  }
  table.slack(table.context, slack);
  return least;
}

}  // namespace

WaitTable machine_wait_table(const TickClock& clock) {
  WaitTable table;
  table.ticks_per_us = 1000.0 / clock.ns_per_tick();
  table.now = machine_now;
  table.sleep = machine_sleep;
  table.yield = machine_yield;
  table.empty_call = machine_empty_call;
  table.slack = machine_slack;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  // Both instructions count in ticks of the counter: without it as the clock there is nothing to ask them for.
  if (g_ticks_are_counter) {
    table.has_waitpkg = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 5)) != 0;
    table.has_monitorx = __get_cpuid(0x80000001u, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
  }
  table.tpause = machine_tpause;
  table.mwaitx = machine_mwaitx;
#endif
  return table;
}

bool passes_self_test(const WaitTable& table, WaitMethod method) {
  const bool umwait = method == WaitMethod::kUmwait && table.has_waitpkg && table.tpause != nullptr;
  const bool mwaitx = method == WaitMethod::kMwaitx && table.has_monitorx && table.mwaitx != nullptr;
  if (!umwait && !mwaitx) return false;
  const double asked = kAskedUs * table.ticks_per_us;
  int passed = 0;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = table.now(table.context);
    wait_once(table, method, before, static_cast<uint64_t>(asked));
    const double took = static_cast<double>(table.now(table.context) - before);
    if (took >= 0.8 * asked && took <= 1.6 * asked) ++passed;
  }
  return passed >= kMustPass;
}

WaitChoice choose_wait_method(const WaitTable& table, WaitWish wish) {
  WaitChoice choice;
  const char* refused = "";
  if (wish == WaitWish::kSpin) {
    choice.may_sleep = false;
    snprintf(choice.text, sizeof(choice.text), "spin, as asked for");
    return choice;
  }
  if (wish == WaitWish::kAuto || wish == WaitWish::kUmwait) {
    if (passes_self_test(table, WaitMethod::kUmwait)) {
      choice.instruction = WaitMethod::kUmwait;
    } else {
      refused = table.has_waitpkg ? "; umwait failed its timed test" : "";
    }
  }
  if (choice.instruction == WaitMethod::kSpin && (wish == WaitWish::kAuto || wish == WaitWish::kMwaitx)) {
    if (passes_self_test(table, WaitMethod::kMwaitx)) {
      choice.instruction = WaitMethod::kMwaitx;
    } else if (table.has_monitorx) {
      refused = "; mwaitx failed its timed test";
    }
  }
  const bool wished = wish == WaitWish::kUmwait || wish == WaitWish::kMwaitx;
  if (wished && choice.instruction == WaitMethod::kSpin && *refused == '\0')
    refused = "; not offered by this processor";
  choice.overshoot_ticks = sleep_overshoot(table);
  snprintf(choice.text, sizeof(choice.text), "%s%ssleep (%.0f us late)%s",
           choice.instruction == WaitMethod::kSpin ? "" : text_of(choice.instruction),
           choice.instruction == WaitMethod::kSpin ? "" : ", ",
           static_cast<double>(choice.overshoot_ticks) / table.ticks_per_us, refused);
  return choice;
}

void pause_with(const WaitTable& table, WaitMethod method, uint64_t length_ticks) {
  uint64_t now = table.now(table.context);
  const uint64_t deadline = now + length_ticks;
  while (now < deadline) {
    wait_once(table, method, now, deadline - now);
    now = table.now(table.context);
  }
}

const char* text_of(WaitMethod method) {
  constexpr const char* kNames[] = {"spin", "sleep", "umwait", "mwaitx"};
  return kNames[static_cast<int>(method)];
}

}  // namespace powerccl
