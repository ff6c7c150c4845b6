// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/wait_methods.h"

#include <errno.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

namespace powerccl {
namespace {

constexpr double kAskedUs = 20.0;  // under the 100000 ticks at which Linux ends a TPAUSE by default
constexpr int kTries = 5, kMustPass = 4;

// An instruction, and the wish that asks for it alone.
constexpr struct {
  WaitMethod method;
  WaitWish wish;
} kInstructions[] = {{WaitMethod::kUmwait, WaitWish::kUmwait},
                     {WaitMethod::kMwaitx, WaitWish::kMwaitx},
                     {WaitMethod::kWfe, WaitWish::kWfe}};

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
#elif defined(__aarch64__)
constexpr unsigned long kEventStream = 1ul << 2;  // HWCAP_EVTSTRM
constexpr unsigned long kTimedWait = 1ul << 31;   // HWCAP2_WFXT

// The first WFE takes the event that SEVL makes and those from before, so that the next one waits.
void machine_wfe(void*, uint64_t) {
  asm volatile("sevl; wfe; wfe" : : : "memory");
}

void machine_wfet(void*, uint64_t deadline) {
  register uint64_t until asm("x0") = deadline;
  asm volatile("sevl; wfe; .inst 0xd5031000" : : "r"(until) : "memory");  // wfet x0
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

bool offers(const WaitTable& table, WaitMethod method) {
  if (method == WaitMethod::kUmwait) return table.has_waitpkg && table.tpause != nullptr;
  if (method == WaitMethod::kMwaitx) return table.has_monitorx && table.mwaitx != nullptr;
  return method == WaitMethod::kWfe && table.has_wfe && table.wfe != nullptr;
}

void wait_once(const WaitTable& table, WaitMethod method, uint64_t now, uint64_t length_ticks) {
  if (method == WaitMethod::kUmwait) {
    table.tpause(table.context, now + length_ticks);
  } else if (method == WaitMethod::kWfe) {
    table.wfe(table.context, now + length_ticks);
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
#elif defined(__aarch64__)
  const bool timed = g_ticks_are_counter && (getauxval(AT_HWCAP2) & kTimedWait) != 0;
  table.has_wfe = timed || (getauxval(AT_HWCAP) & kEventStream) != 0;
  table.wfe = timed ? machine_wfet : machine_wfe;
#endif
  return table;
}

bool passes_self_test(const WaitTable& table, WaitMethod method) {
  if (!offers(table, method)) return false;
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
  char refused[40] = "";
  if (wish == WaitWish::kSpin) {
    choice.may_sleep = false;
    snprintf(choice.text, sizeof(choice.text), "spin, as asked for");
    return choice;
  }
  for (const auto& each : kInstructions) {
    if (wish != WaitWish::kAuto && wish != each.wish) continue;
    if (passes_self_test(table, each.method)) {
      choice.instruction = each.method;
      break;
    }
    if (offers(table, each.method)) {
      snprintf(refused, sizeof(refused), "; %s failed its timed test", text_of(each.method));
    } else if (wish == each.wish) {
      snprintf(refused, sizeof(refused), "; not offered by this processor");
    }
  }
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
  constexpr const char* kNames[] = {"spin", "sleep", "umwait", "mwaitx", "wfe"};
  return kNames[static_cast<int>(method)];
}

}  // namespace powerccl
