// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/wait_methods.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fake_machine.h"

namespace powerccl {
namespace {

TEST(WaitMethods, UmwaitIsTakenWhereCpuidHasItAndTheTimerKeepsTime) {
  FakeMachine machine;
  WaitTable table = machine.table();
  table.has_waitpkg = true;
  const WaitChoice choice = choose_wait_method(table, WaitWish::kAuto);
  EXPECT_EQ(choice.instruction, WaitMethod::kUmwait);
  EXPECT_GT(machine.tpauses, 0);
  EXPECT_EQ(machine.mwaitxs, 0);
  EXPECT_TRUE(choice.may_sleep);
  EXPECT_EQ(choice.overshoot_ticks, 17 * kUs);
}

TEST(WaitMethods, NothingIsExecutedThatCpuidDoesNotOffer) {
  FakeMachine machine;
  const WaitTable table = machine.table();
  for (const WaitWish wish :
       {WaitWish::kAuto, WaitWish::kUmwait, WaitWish::kMwaitx, WaitWish::kWfe, WaitWish::kSleep}) {
    const WaitChoice choice = choose_wait_method(table, wish);
    EXPECT_EQ(choice.instruction, WaitMethod::kSpin);
    EXPECT_TRUE(choice.may_sleep);
  }
  EXPECT_EQ(machine.tpauses + machine.mwaitxs + machine.wfes, 0);
}

TEST(WaitMethods, MwaitxIsTakenWhereItsTimerKeepsTime) {
  FakeMachine machine;
  WaitTable table = machine.table();
  table.has_monitorx = true;
  EXPECT_EQ(choose_wait_method(table, WaitWish::kAuto).instruction, WaitMethod::kMwaitx);
  EXPECT_EQ(choose_wait_method(table, WaitWish::kUmwait).instruction, WaitMethod::kSpin);
}

// Seen on a virtual EPYC: MWAITX neither faults nor waits.
TEST(WaitMethods, ATrappedMwaitxFailsTheSelfTestAndTheReasonIsSaid) {
  FakeMachine machine;
  machine.traps_mwaitx = true;
  WaitTable table = machine.table();
  table.has_monitorx = true;
  const WaitChoice choice = choose_wait_method(table, WaitWish::kAuto);
  EXPECT_EQ(choice.instruction, WaitMethod::kSpin);
  EXPECT_TRUE(choice.may_sleep);
  EXPECT_STREQ(choice.text, "sleep (17 us late); mwaitx failed its timed test");
}

TEST(WaitMethods, AnUmwaitThatIsCutShortFailsTheSelfTest) {
  FakeMachine machine;
  machine.tpause_limit = 2 * kUs;  // an administrator's umwait_control/max_time
  WaitTable table = machine.table();
  table.has_waitpkg = true;
  EXPECT_FALSE(passes_self_test(table, WaitMethod::kUmwait));
}

TEST(WaitMethods, WfeIsTakenWhereEventsComeOftenEnough) {
  FakeMachine machine;
  machine.event_period = 20 * kUs;
  WaitTable table = machine.table();
  table.has_wfe = true;
  EXPECT_EQ(choose_wait_method(table, WaitWish::kAuto).instruction, WaitMethod::kWfe);
  EXPECT_EQ(choose_wait_method(table, WaitWish::kWfe).instruction, WaitMethod::kWfe);
  EXPECT_EQ(choose_wait_method(table, WaitWish::kUmwait).instruction, WaitMethod::kSpin);
}

// Linux asks for an event every 100 us; of a counter of 1 GHz that is one every 65.536 us at most.
TEST(WaitMethods, AWfeThatEndsTooLateOrImmediatelyFailsTheSelfTest) {
  for (const uint64_t period : {uint64_t{0}, uint64_t{65536} * kUs / 1000}) {
    FakeMachine machine;
    machine.event_period = period;
    WaitTable table = machine.table();
    table.has_wfe = true;
    const WaitChoice choice = choose_wait_method(table, WaitWish::kAuto);
    EXPECT_EQ(choice.instruction, WaitMethod::kSpin);
    EXPECT_STREQ(choice.text, "sleep (17 us late); wfe failed its timed test");
    EXPECT_GT(machine.wfes, 0);
  }
}

TEST(WaitMethods, PausesLongerThanOneInstructionMayLastAreRepeated) {
  FakeMachine machine;
  WaitTable table = machine.table();
  table.has_waitpkg = true;
  const uint64_t before = machine.clock;
  pause_with(table, WaitMethod::kUmwait, 100 * kUs);
  EXPECT_EQ(machine.clock - before, 100 * kUs);
  EXPECT_EQ(machine.tpauses, 3);
}

TEST(WaitMethods, SpinMeansNeitherInstructionNorSleep) {
  FakeMachine machine;
  WaitTable table = machine.table();
  table.has_waitpkg = true;
  const WaitChoice choice = choose_wait_method(table, WaitWish::kSpin);
  EXPECT_EQ(choice.instruction, WaitMethod::kSpin);
  EXPECT_FALSE(choice.may_sleep);
  EXPECT_EQ(machine.tpauses, 0);
  EXPECT_TRUE(machine.sleeps.empty());
}

TEST(WaitMethods, TimerSlackIsPutBackAfterTheSelfTest) {
  FakeMachine machine;
  choose_wait_method(machine.table(), WaitWish::kAuto);
  EXPECT_EQ(machine.slack_ns, 50000u);
}

// The machine that the tests run on: whatever is chosen must really wait.
TEST(WaitMethods, WhatThisMachineIsSaidToHaveHoldsHere) {
  TickClock clock;
  clock.begin();
  const WaitTable table = machine_wait_table(clock);
  const WaitChoice choice = choose_wait_method(table, WaitWish::kAuto);
  EXPECT_TRUE(choice.may_sleep);
  const uint64_t before = monotonic_ns();
  if (choice.instruction != WaitMethod::kSpin) {
    pause_with(table, choice.instruction, static_cast<uint64_t>(1000 * table.ticks_per_us));
  } else {
    table.sleep(table.context, 1000000);
  }
  EXPECT_GE(monotonic_ns() - before, 990000u);
}

#if defined(__x86_64__)
// MONITORX and MWAITX do not fault on AMD even where CPUID hides them; there the test executes them and must see
// through a hypervisor that traps them.
TEST(WaitMethods, ThisMachinesMwaitxIsJudgedByTheClock) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &b, &c, &d);
  if (b != signature_AMD_ebx) GTEST_SKIP() << "not an AMD processor: MWAITX would fault";
  TickClock clock;
  clock.begin();
  if (!g_ticks_are_counter) GTEST_SKIP() << "no invariant counter";
  WaitTable table = machine_wait_table(clock);
  const bool offered = table.has_monitorx;
  table.has_monitorx = true;
  // Five single waits of 20 us tell a timer from a no-op; the verdict must agree with a measurement of many.
  double total_us = 0;
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = ticks();
    table.mwaitx(table.context, static_cast<uint32_t>(20 * table.ticks_per_us));
    total_us += static_cast<double>(ticks() - before) / table.ticks_per_us;
  }
  const bool keeps_time = total_us / 50 >= 16 && total_us / 50 <= 32;
  if (!keeps_time) {
    EXPECT_FALSE(passes_self_test(table, WaitMethod::kMwaitx)) << total_us / 50 << " us a wait";
  }
  if (offered && keeps_time) {
    EXPECT_EQ(choose_wait_method(table, WaitWish::kMwaitx).instruction, WaitMethod::kMwaitx);
  }
}
#elif defined(__aarch64__)
// WFE never faults. Without an event stream the next interrupt ends it, and under emulation it is a no-op.
TEST(WaitMethods, ThisMachinesWfeIsJudgedByTheClock) {
  TickClock clock;
  clock.begin();
  WaitTable table = machine_wait_table(clock);
  table.has_wfe = true;
  const auto asked = static_cast<uint64_t>(20 * table.ticks_per_us);
  std::vector<double> waits_us;
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = ticks();
    table.wfe(table.context, before + asked);
    waits_us.push_back(static_cast<double>(ticks() - before) / table.ticks_per_us);
  }
  const auto middle = waits_us.begin() + 25;
  std::nth_element(waits_us.begin(), middle, waits_us.end());
  if (*middle < 16 || *middle > 32) {
    EXPECT_FALSE(passes_self_test(table, WaitMethod::kWfe)) << *middle << " us a wait";
  }
}
#endif

}  // namespace
}  // namespace powerccl
