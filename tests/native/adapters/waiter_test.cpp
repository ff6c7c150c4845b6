// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/waiter.h"

#include <gtest/gtest.h>

#include "fake_machine.h"

namespace powerccl {
namespace {

class WaiterTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPoll = kUs / 10;

  void plan_with(bool waitpkg, double budget_percent = 1.0, bool sleeps = true) {
    WaitTable table = machine.table();
    table.has_waitpkg = waitpkg;
    const WaitChoice choice = choose_wait_method(table, WaitWish::kAuto);
    plan = make_wait_plan(table, choice, budget_percent, sleeps);
    machine.sleeps.clear();
    machine.pauses.clear();
    machine.yields = 0;
  }
  // Polls as a library does until `length` has passed. Returns by how much the wait outlasted it.
  uint64_t wait(uint64_t length, Moved moved = Moved::kNothing) {
    waiter.begin();
    const uint64_t until = machine.clock + length;
    while (machine.clock < until) poll(moved);
    const uint64_t late = machine.clock - until;
    waiter.end(plan);
    return late;
  }
  void poll(Moved moved = Moved::kNothing) {
    machine.clock += kPoll;
    waiter.idle(plan, moved);
  }

  FakeMachine machine;
  WaitPlan plan;
  Waiter waiter;
};

TEST_F(WaiterTest, ShortWaitsNeverSleep) {
  plan_with(true);
  for (int i = 0; i < 100; ++i) wait(140 * kUs);
  EXPECT_TRUE(machine.sleeps.empty());
  EXPECT_TRUE(machine.pauses.empty());
  EXPECT_EQ(waiter.sleeps, 0u);
}

TEST_F(WaiterTest, EveryPauseIsWithinTheBudgetOfWhatWasWaitedBefore) {
  for (const double budget : {0.2, 1.0, 5.0}) {
    plan_with(false, budget);
    waiter.begin();
    const uint64_t start = machine.clock;
    while (machine.clock - start < 1000000 * kUs) {
      const uint64_t before = machine.clock;
      poll();
      const uint64_t took = machine.clock - before - kPoll;
      EXPECT_LE(took, static_cast<uint64_t>(budget / 100 * static_cast<double>(before - start)) + kUs);
    }
    waiter.end(plan);
    EXPECT_GT(waiter.sleep_ticks(), 900000 * kUs) << budget;
  }
}

TEST_F(WaiterTest, SleepsAreBoundedSoonerWhereItIsNotKnownWhatMoved) {
  plan_with(false);
  for (const Moved moved : {Moved::kNothing, Moved::kUnknown}) {
    wait(3000000 * kUs, moved);
    const uint64_t bound = moved == Moved::kNothing ? 8000 * kUs : 5000 * kUs;
    uint64_t longest = 0;
    for (const uint64_t slept : machine.sleeps) longest = slept > longest ? slept : longest;
    EXPECT_LE(longest, bound);
    EXPECT_GT(10 * longest, 9 * bound);
    machine.sleeps.clear();
  }
}

TEST_F(WaiterTest, PausesShorterThanASleepAreLeftToTheInstruction) {
  plan_with(true);
  wait(10000 * kUs);
  EXPECT_TRUE(machine.sleeps.empty());
  ASSERT_FALSE(machine.pauses.empty());
  EXPECT_GT(waiter.sleep_ticks(), 8000 * kUs);
  wait(1000000 * kUs);
  EXPECT_FALSE(machine.sleeps.empty()) << "long pauses leave the core to others";
}

TEST_F(WaiterTest, SomethingThatMovedMakesWaitingStartAnew) {
  plan_with(false);
  waiter.begin();
  const uint64_t until = machine.clock + 500000 * kUs;
  while (machine.clock < until) poll();
  const size_t slept = machine.sleeps.size();
  poll(Moved::kSomething);
  const uint64_t moved = machine.clock;
  while (machine.clock - moved < 1000 * kUs) poll();
  EXPECT_EQ(machine.sleeps.size(), slept) << "awake for the next message";
  waiter.end(plan);
}

// Where it is not known whether something moved, a poll that took long is a sign of it.
TEST_F(WaiterTest, AfterASignTheRankIsAwakeForAMomentAndSleepsOnAsLong) {
  plan_with(false);
  waiter.begin();
  const uint64_t until = machine.clock + 500000 * kUs;
  while (machine.clock < until) poll(Moved::kUnknown);
  const uint64_t usual = machine.sleeps.back();
  machine.sleeps.clear();
  machine.clock += 6 * kUs;
  const uint64_t sign = machine.clock;
  while (machine.sleeps.empty()) poll(Moved::kUnknown);
  EXPECT_GT(machine.clock - machine.sleeps.back() - sign, 40 * kUs) << "for those that are served one after the other";
  EXPECT_LT(machine.clock - machine.sleeps.back() - sign, 200 * kUs);
  EXPECT_GT(10 * machine.sleeps.back(), 9 * usual);
  waiter.end(plan);
}

TEST_F(WaiterTest, MessagesOneAfterTheOtherAreServedAwake) {
  plan_with(false);
  waiter.begin();
  const uint64_t until = machine.clock + 500000 * kUs;
  while (machine.clock < until) poll(Moved::kUnknown);
  machine.clock += kUs;
  poll(Moved::kUnknown);
  machine.sleeps.clear();
  for (int message = 0; message < 1000; ++message) {
    for (int polls = 0; polls < 30; ++polls) poll(Moved::kUnknown);
    machine.clock += kUs;
    poll(Moved::kUnknown);
  }
  EXPECT_TRUE(machine.sleeps.empty());
  waiter.end(plan);
}

TEST_F(WaiterTest, SignsAfterEveryPauseShortenTheSleeps) {
  plan_with(false);
  waiter.begin();
  const uint64_t until = machine.clock + 500000 * kUs;
  while (machine.clock < until) poll(Moved::kUnknown);
  for (int message = 0; message < 12; ++message) {
    machine.sleeps.clear();
    for (int polls = 0; polls < 20000 && machine.sleeps.empty(); ++polls) poll(Moved::kUnknown);
    machine.clock += 6 * kUs;  // it was waited for, as long as the rank slept
    poll(Moved::kUnknown);
  }
  EXPECT_TRUE(machine.sleeps.empty() || machine.sleeps.back() < 100 * kUs);
  waiter.end(plan);
}

// Of a rank that polls for a second, how long it is awake, in percent. Every so often it is interrupted for `length`.
double awake_percent(FakeMachine& machine, Waiter& waiter, const WaitPlan& plan, uint64_t every, uint64_t length) {
  waiter.begin();
  const uint64_t start = machine.clock, until = start + 1000000 * kUs;
  uint64_t awake = 0, interrupted = start / every;
  while (machine.clock < until) {
    const size_t slept = machine.sleeps.size();
    const uint64_t before = machine.clock;
    machine.clock += kUs / 2;
    if (machine.clock / every != interrupted) {
      interrupted = machine.clock / every;
      machine.clock += length;
    }
    waiter.idle(plan, Moved::kUnknown);
    if (machine.sleeps.size() == slept) {
      awake += machine.clock - before;
    } else {
      interrupted = machine.clock / every;  // by those that came meanwhile it was not
    }
  }
  waiter.end(plan);
  return 100.0 * static_cast<double>(awake) / static_cast<double>(until - start);
}

TEST_F(WaiterTest, InterruptsAreNoMessages) {
  plan_with(false);
  EXPECT_LT(awake_percent(machine, waiter, plan, 4000 * kUs, 10 * kUs), 3);
  EXPECT_LT(awake_percent(machine, waiter, plan, 777 * kUs, 10 * kUs), 5);
}

TEST_F(WaiterTest, ThreadsThatTakeTheirTurnsAreNoMessages) {
  plan_with(false);
  EXPECT_LT(awake_percent(machine, waiter, plan, 20000 * kUs, 3000 * kUs), 20) << "theirs included";
}

TEST_F(WaiterTest, SleepsThatOthersMadeLateDoNotEndThem) {
  plan_with(false);
  machine.late_every = 4;
  machine.late_by = 3000 * kUs;
  EXPECT_LT(awake_percent(machine, waiter, plan, 4000 * kUs, kUs), 4);
  // However late they are, the rank goes on trying, and learns again.
  machine.late_every = 1;
  wait(1000000 * kUs);
  machine.late_every = 0;
  wait(1000000 * kUs);
  EXPECT_LT(awake_percent(machine, waiter, plan, 4000 * kUs, kUs), 3);
}

TEST_F(WaiterTest, SlackIsChangedForSleepsOnlyAndPutBackAtTheEndOfTheCall) {
  plan_with(false);
  wait(100 * kUs);
  EXPECT_EQ(machine.slack_ns, 50000u);
  waiter.begin();
  const uint64_t until = machine.clock + 20000 * kUs;
  while (machine.clock < until) poll();
  EXPECT_EQ(machine.slack_ns, 1u);
  waiter.end(plan);
  EXPECT_EQ(machine.slack_ns, 50000u);
}

TEST_F(WaiterTest, ObservingNeverPauses) {
  plan_with(true, 1.0, false);
  wait(1000000 * kUs);
  EXPECT_TRUE(machine.sleeps.empty());
  EXPECT_TRUE(machine.pauses.empty());
  EXPECT_GT(waiter.wait_ticks(), 990000 * kUs);
  EXPECT_EQ(waiter.sleep_ticks(), 0u);
}

TEST_F(WaiterTest, TheCoreIsOfferedToOthersWhileSpinning) {
  plan_with(false);
  wait(100 * kUs);
  EXPECT_GE(machine.yields, 3);
  EXPECT_LT(machine.yields, 20);
  machine.yields = 0;
  machine.yield_takes = 3000 * kUs;  // somebody takes it
  wait(10000 * kUs);
  EXPECT_GT(waiter.offers_taken, 0u);
  EXPECT_LE(machine.yields, 5);
}

// Waits whose answer comes only when somebody else has had the core: how many of them offered it at the first poll.
int offered_at_once(FakeMachine& machine, Waiter& waiter, const WaitPlan& plan, int waits) {
  int at_once = 0;
  for (int i = 0; i < waits; ++i) {
    waiter.begin();
    const int before = machine.yields;
    for (int polls = 1; machine.yields == before; ++polls) {
      machine.clock += kUs / 10;
      waiter.idle(plan, Moved::kNothing);
      if (polls == 1 && machine.yields != before) ++at_once;
    }
    waiter.end(plan);
  }
  return at_once;
}

TEST_F(WaiterTest, ACoreThatOthersWantIsOfferedAtOnceOnceThatIsKnownToHelp) {
  plan_with(false);
  machine.yield_takes = 2 * kUs;  // there and back
  wait(100 * kUs);
  ASSERT_TRUE(waiter.shares_core());
  offered_at_once(machine, waiter, plan, 20);
  const int at_once = offered_at_once(machine, waiter, plan, 1000);
  EXPECT_GE(at_once, 990);
  EXPECT_LT(at_once, 1000) << "it is tried now and then whether answers come sooner by now";
}

TEST_F(WaiterTest, AnswersFromOtherCoresAreWaitedForWithoutAnOffer) {
  plan_with(false);
  machine.yield_takes = 2 * kUs;
  wait(100 * kUs);
  offered_at_once(machine, waiter, plan, 100);
  machine.yields = 0;
  for (int i = 0; i < 1000; ++i) wait(kUs / 2);
  EXPECT_LT(machine.yields, 1500) << "each offer would have cost four times the wait";
  machine.yields = 0;
  for (int i = 0; i < 1000; ++i) wait(kUs / 2);
  EXPECT_EQ(machine.yields, 0);
  EXPECT_FALSE(waiter.shares_core());
}

TEST_F(WaiterTest, TheOvershootOfSleepsIsLearned) {
  plan_with(false);
  machine.overshoot = 60 * kUs;  // worse than when the self-test ran
  wait(1000000 * kUs);
  machine.sleeps.clear();
  EXPECT_LE(wait(20000 * kUs), 200 * kUs + kUs);
}

}  // namespace
}  // namespace powerccl
