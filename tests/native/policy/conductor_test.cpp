// SPDX-License-Identifier: Apache-2.0
#include "policy/conductor.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "training_job.h"

namespace powerccl {
namespace {

using Job = TrainingJob;

double mean(const std::vector<double>& values, size_t from) {
  return std::accumulate(values.begin() + static_cast<long>(from), values.end(), 0.0) /
         static_cast<double>(values.size() - from);
}

// One that looks for a clock, too.
std::unique_ptr<Conductor> searching() {
  Conductor::Terms terms;
  terms.search = true;
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  return conductor;
}

struct Outcome {
  double slowdown;     // against the same job left alone, once it has learnt
  double low_share;    // of the exposed time, at the low clock
  double first_worst;  // the slowest iteration of all, against the usual
  Conductor::State state;
  int changes;  // of the clock, an iteration
};

Outcome outcome(const std::vector<Job::Operation>& iteration, Job::Machine machine, Conductor::Terms terms = {},
                int iterations = 150) {
  Job alone(iteration, machine, nullptr);
  const double usual = mean(alone.run(iterations), 10);
  auto conductor = std::make_unique<Conductor>();
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  conductor->begin(terms);
  Job job(iteration, machine, conductor.get());
  const int learning = 120;
  std::vector<double> first = job.run(learning);
  job.forget_sums();
  const std::vector<double> rest = job.run(iterations - learning);
  Outcome found{};
  found.slowdown = mean(rest, 0) / usual - 1;
  found.low_share = job.low_exposed_ms() / job.exposed_ms();
  found.first_worst = *std::max_element(first.begin(), first.end()) / usual;
  found.state = conductor->state();
  found.changes = job.changes() / (iterations - learning);
  printf(
      "slowdown %.4f low_share %.3f worst %.2f windows %u covered %.2f short %.2f managed %lu changes %d clock %u "
      "tried %u\n",
      found.slowdown, found.low_share, found.first_worst, found.state.windows, found.state.covered_ns / 1e6,
      found.state.too_short_ns / 1e6, found.state.managed, found.changes, found.state.clock_mhz,
      found.state.clocks_tried);
  return found;
}

std::vector<Job::Operation> exposed() {
  return {Job::compute(30),     Job::wait(Job::kComm), Job::communicate(7.5),
          Job::communicate(70), Job::communicate(7.6), Job::wait(Job::kCompute)};
}
std::vector<Job::Operation> ddp() {
  std::vector<Job::Operation> all{Job::compute(25)};
  for (int i = 0; i < 4; ++i) {
    all.push_back(Job::compute(14));
    all.push_back(Job::wait(Job::kComm));
    all.push_back(Job::communicate(15.5));
  }
  all.push_back(Job::wait(Job::kCompute));
  all.push_back(Job::compute(3));
  return all;
}
std::vector<Job::Operation> zero1() {
  std::vector<Job::Operation> all{Job::compute(22)};
  for (int i = 0; i < 4; ++i) {
    all.push_back(Job::compute(11));
    all.push_back(Job::wait(Job::kComm));
    all.push_back(Job::communicate(8.2));
  }
  all.push_back(Job::wait(Job::kCompute));
  all.push_back(Job::compute(1.5));
  for (int i = 0; i < 4; ++i) all.push_back(Job::communicate(7.7, Job::kCompute));
  return all;
}
std::vector<Job::Operation> tensor_parallel() {
  std::vector<Job::Operation> all;
  for (int i = 0; i < 32; ++i) {
    all.push_back(Job::compute(i < 16 ? 1.1 : 2.2));
    all.push_back(Job::communicate(0.9, Job::kCompute));
  }
  all.push_back(Job::communicate(3.7, Job::kCompute));
  return all;
}

TEST(ConductorMarked, ExposedCommunicationIsAtALowClock) {
  const Outcome found = outcome(exposed(), {.marks = true});
  EXPECT_LT(found.slowdown, 0.002);
  EXPECT_GT(found.low_share, 0.9);
}
TEST(ConductorMarked, HiddenCommunicationIsLeftAlone) {
  const Outcome found = outcome(ddp(), {.marks = true});
  EXPECT_LT(found.slowdown, 0.002);
  EXPECT_GT(found.low_share, 0.7);
  EXPECT_LT(found.first_worst, 1.02);
}
TEST(ConductorMarked, TwoKindsOfCommunication) {
  const Outcome found = outcome(zero1(), {.marks = true});
  EXPECT_LT(found.slowdown, 0.002);
  EXPECT_GT(found.low_share, 0.8);
}
TEST(ConductorMarked, ShortPhasesWhereSwitchingTakesLonger) {
  const Outcome found = outcome(tensor_parallel(), {.marks = true});
  EXPECT_LT(found.slowdown, 0.002);
  EXPECT_LE(found.changes, 2);
}
TEST(ConductorMarked, ShortPhasesWhereSwitchingIsQuick) {
  const Outcome found = outcome(tensor_parallel(), {.call_ms = 0.02, .transition_ms = 0.03, .marks = true});
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_GT(found.low_share, 0.15);
  EXPECT_LE(found.changes, 17);  // no more a second than may take so much of a core
}
TEST(ConductorMarked, SlowSwitching) {
  const Outcome found = outcome(exposed(), {.call_ms = 4.5, .transition_ms = 20, .marks = true});
  EXPECT_LT(found.slowdown, 0.005);
  EXPECT_GT(found.low_share, 0.8);
}
TEST(Conductor, ExposedCommunicationIsAtALowClock) {
  const Outcome found = outcome(exposed(), {});
  EXPECT_LT(found.slowdown, 0.003);
  EXPECT_GT(found.low_share, 0.9);
}
TEST(Conductor, HiddenCommunicationIsFoundOut) {
  const Outcome found = outcome(ddp(), {});
  EXPECT_LT(found.slowdown, 0.005);
  EXPECT_GT(found.low_share, 0.6);
}
// Its end is not told to less than many times what a change takes, and nobody flees from it ever further.
TEST(Conductor, CommunicationThatVariesMoreThanAChangeTakes) {
  const Job::Machine machine{.call_ms = 0.02, .transition_ms = 0.03, .marks = true, .drawn = 0.03};
  const Outcome found = outcome(exposed(), machine, {}, 1500);
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_GT(found.state.covered_ns, 82.5e6);  // of 85 ms
}
TEST(Conductor, TwoKindsOfCommunication) {
  const Outcome found = outcome(zero1(), {});
  EXPECT_LT(found.slowdown, 0.005);
  EXPECT_GT(found.low_share, 0.7);
}

// Eight GPUs whose driver serves one after the other: of 56 ms 31.5 go by for all turns, and the rest is all that a
// change takes. Then no GPU has a window, rather than one of them now and then.
TEST(Conductor, WindowsThatOnlyJustFitInTurnsAreLeftAlone) {
  const auto windows = [](double communication_ms, double vague_ms = 0) {
    const std::vector<Job::Operation> iteration{Job::compute(30), Job::wait(Job::kComm),
                                                Job::communicate(communication_ms), Job::wait(Job::kCompute)};
    const auto joint = std::make_unique<Joint>();
    for (uint64_t each = 1; each <= 8; ++each) joint->place(each);
    joint->take_turns();
    Conductor::Terms terms;
    terms.joint = joint.get();
    terms.transition_ns = 20000000;
    const Outcome found = outcome(iteration, {.call_ms = 4.5, .transition_ms = 20, .vague_ms = vague_ms}, terms, 400);
    EXPECT_LT(found.slowdown, 0.005);
    return found.state.windows;
  };
  EXPECT_EQ(windows(57), 0u);
  EXPECT_EQ(windows(57, 4), 0u) << "a read that was held up does not say that changes are quicker than was measured";
  EXPECT_EQ(windows(70), 1u);
}

TEST(ConductorJob, FindsWhereComputationRunsByItself) {
  Conductor::Terms terms;
  terms.windows = false;
  terms.search = true;
  const Outcome found = outcome(tensor_parallel(), {.natural_mhz = 1090}, terms, 500);
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_LE(found.state.clock_mhz, 1120u);
  EXPECT_GE(found.state.clock_mhz, 1060u);
}
TEST(ConductorJob, ComputationAtTheHighestClockLeavesLittle) {
  Conductor::Terms terms;
  terms.windows = false;
  terms.search = true;
  const Outcome found = outcome(ddp(), {}, terms, 500);
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_TRUE(found.state.clock_mhz == 0 || found.state.clock_mhz > 1500) << found.state.clock_mhz;
}
TEST(ConductorAuto, BothTogether) {
  Conductor::Terms terms;
  terms.search = true;
  const Outcome found = outcome(zero1(), {.natural_mhz = 1090, .marks = true}, terms, 500);
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_GT(found.low_share, 0.75);
  EXPECT_LE(found.state.clock_mhz, 1150u);
  EXPECT_GE(found.state.clock_mhz, 1060u);
}

// Graphs that hold all communication are looked into: it is low in them as elsewhere.
TEST(ConductorAuto, CommunicationInGraphs) {
  Conductor::Terms terms;
  terms.search = true;
  const Outcome found = outcome(exposed(), {.natural_mhz = 1090, .captured = true}, terms, 500);
  EXPECT_LT(found.slowdown, 0.01);
  EXPECT_GT(found.low_share, 0.75);
  EXPECT_EQ(found.state.period, 3u);
  EXPECT_LE(found.state.clock_mhz, 1150u);
}
// One beside calls of another kind is a call itself, for those come at other times than what is in graphs.
TEST(ConductorAuto, GraphsBesideCallsAreCallsThemselves) {
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin({});
  for (uint64_t i = 0; i < 40; ++i) {
    conductor->graph_called(2 * i + 1, 77);
    EXPECT_EQ(conductor->captured_begins(5, 480), 0u);
    conductor->called(2 * i + 2, 6, 480);
  }
  for (uint64_t i = 0; i < 8; ++i) conductor->graph_called(1000 + i, 77);
  const uint64_t first = conductor->captured_begins(5, 480), second = conductor->captured_begins(5, 480);
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
}

// One that has found its clock.
class ConductorThatFound : public testing::Test {
 protected:
  ConductorThatFound() {
    job.run(400);
    found_mhz = conductor->state().clock_mhz;
    EXPECT_LE(found_mhz, 1150u);
    EXPECT_GE(found_mhz, 1000u);
  }
  std::unique_ptr<Conductor> conductor = searching();
  Job job{zero1(), {.natural_mhz = 1090, .marks = true}, conductor.get()};
  uint32_t found_mhz = 0;
};

TEST_F(ConductorThatFound, AClockThatHasBecomeTooSlowIsRaised) {
  job.run_by_itself_at(1590);  // as where a power limit is lifted
  Job alone(zero1(), {.natural_mhz = 1590, .marks = true}, nullptr);
  const double usual = mean(alone.run(50), 0);
  job.run(2000);
  const uint32_t mhz = conductor->state().clock_mhz;
  EXPECT_TRUE(mhz == 0 || mhz > 1500) << mhz;
  EXPECT_TRUE(conductor->state().judged);
  EXPECT_LT(mean(job.run(100), 0) / usual - 1, 0.012);
}

// Whose fault it is that iterations take far too long is not known: slack is given back on all ranks, and the clock
// goes up as well.
TEST(ConductorAuto, SlackIsGivenBackWhereItMayCostFarTooMuch) {
  const auto joint = std::make_unique<Joint>();
  Conductor::Terms terms;
  terms.search = true;
  terms.most_mhz = 1590;
  terms.least_mhz = 300;
  terms.joint = joint.get();
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  Job job(zero1(), {.natural_mhz = 1090, .marks = true}, conductor.get());
  job.run(400);
  EXPECT_TRUE(joint->mode_at(job.now_ns()).slack);
  job.run_by_itself_at(1590);
  job.run(600);
  EXPECT_FALSE(joint->mode_at(job.now_ns()).slack);
  const uint32_t mhz = conductor->state().clock_mhz;
  EXPECT_TRUE(mhz == 0 || mhz > 1300) << mhz;
}

// Or one that was disturbed while it was looked for, or that has become lower since.
TEST(ConductorJob, AClockThatWasNotFoundIsLookedForAgain) {
  Conductor::Terms terms;
  terms.windows = false;
  terms.search = true;
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  Job job(zero1(), {.marks = true}, conductor.get());
  job.run(300);
  const uint32_t before_mhz = conductor->state().clock_mhz;
  EXPECT_TRUE(before_mhz == 0 || before_mhz > 1500) << before_mhz;
  job.run_by_itself_at(1090);  // the room has become warmer
  job.run(4000);
  EXPECT_LE(conductor->state().clock_mhz, 1150u);
  EXPECT_GE(conductor->state().clock_mhz, 1000u);
}

// Communication of which nobody knows when it ends: for the others, the clock is up too late or hardly down.
TEST(ConductorAuto, DrawnCommunicationKeepsToTheBudget) {
  Conductor::Terms terms;
  terms.search = true;
  const Outcome found =
      outcome(exposed(), {.call_ms = 1, .transition_ms = 4, .natural_mhz = 1090, .drawn = 0.3}, terms, 4000);
  EXPECT_LT(found.slowdown, 0.013);
  EXPECT_LE(found.state.clock_mhz, 1150u);
  EXPECT_GE(found.state.clock_mhz, 1000u);
}

// As with another machine's profile: communication loses bandwidth in windows. Without them one clock is found.
TEST(ConductorAuto, WindowsThatCostTooMuchMakeRoomForOneClock) {
  Conductor::Terms terms;
  terms.search = true;
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  const Job::Machine machine{.natural_mhz = 1090, .carried_low = 0.9};
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  Job job(exposed(), machine, conductor.get()), alone(exposed(), machine, nullptr);
  job.run(300);
  alone.run(300);
  EXPECT_LT(mean(job.run(600), 0) / mean(alone.run(600), 0) - 1, 0.01);
  EXPECT_LE(conductor->state().clock_mhz, 1150u);
  EXPECT_GE(conductor->state().clock_mhz, 1000u);
  EXPECT_EQ(conductor->state().windows, 0u);
  // They are tried again, ever more rarely.
  EXPECT_LT(mean(job.run(4000), 0) / mean(alone.run(4000), 0) - 1, 0.01);
}

// As where iterations differ and the first few were no fair sample, or where a GPU computes more slowly by itself.
TEST(ConductorJob, AClockThatLeavesMuchOfTheBudgetIsLowered) {
  Conductor::Terms terms;
  terms.windows = false;
  terms.search = true;
  terms.budget = 0.04;
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  Job job(zero1(), {.natural_mhz = 1090, .marks = true}, conductor.get());
  job.run(400);
  const uint32_t found_mhz = conductor->state().clock_mhz;
  ASSERT_GE(found_mhz, 950u);
  job.run_by_itself_at(950);
  job.run(3000);
  EXPECT_LE(conductor->state().clock_mhz, found_mhz - 30);
  Job alone(zero1(), {.natural_mhz = 950, .marks = true}, nullptr);
  const double usual = mean(alone.run(50), 0);
  EXPECT_LT(mean(job.run(100), 0) / usual - 1, 0.042);
}

// Iterations that differ by 4 %: blocks of a few seconds tell nothing, several long ones do.
TEST(ConductorJob, IterationsThatDifferKeepToTheBudgetInTheEnd) {
  Conductor::Terms terms;
  terms.windows = false;
  terms.search = true;
  terms.most_mhz = Job::kMaxMhz;
  terms.least_mhz = Job::kLowMhz;
  const Job::Machine machine{.natural_mhz = 1090, .marks = true, .jitter = 0.15};
  const auto conductor = std::make_unique<Conductor>();
  conductor->begin(terms);
  Job job(zero1(), machine, conductor.get()), alone(zero1(), machine, nullptr);
  job.run(4000);
  alone.run(4000);  // it draws the same
  EXPECT_LT(mean(job.run(500), 0) / mean(alone.run(500), 0) - 1, 0.012);
  EXPECT_LE(conductor->state().clock_mhz, 1180u);
  EXPECT_GE(conductor->state().clock_mhz, 1050u);
  EXPECT_LT(conductor->state().slowdown.high - conductor->state().slowdown.low, 0.06);
  EXPECT_LT(conductor->state().iterations - conductor->state().managed, 1500u);
}

// Another phase of training computes at another clock by itself, and has as much to spare below that.
TEST_F(ConductorThatFound, AJobThatChangesIsLookedAtAnew) {
  job.change(tensor_parallel());
  job.run_by_itself_at(1400);
  job.run(500);
  EXPECT_LE(conductor->state().clock_mhz, 1430u);
  EXPECT_GE(conductor->state().clock_mhz, 1350u);
  EXPECT_LE(conductor->state().clocks_tried, 4u);
}

// What it is left alone for until a clock is known is as good to compare with as a block later on: that may wait.
TEST(ConductorJob, AJobThatChangesIsLeftAloneOnce) {
  const auto conductor = searching();
  Job job(exposed(), {.natural_mhz = 1090, .marks = true, .jitter = 0.05}, conductor.get());
  while (job.now_ns() < 70'000'000'000u) job.run(10);
  const Conductor::State before = conductor->state();
  const uint64_t changed_ns = job.now_ns();
  std::vector<Job::Operation> shorter = exposed();
  shorter[0].ms = 20;
  shorter[3].ms = 50;
  job.change(shorter);
  while (job.now_ns() < changed_ns + 40'000'000'000u) job.run(10);
  const Conductor::State after = conductor->state();
  EXPECT_GT(static_cast<double>(after.managed - before.managed),
            0.78 * static_cast<double>(after.iterations - before.iterations));
  EXPECT_NE(after.clock_mhz, 0u);
}

// Most of a block has gone by before it counts, so it is not ended by the first few iterations that do.
TEST(ConductorJob, WhatIsLeftAloneIsSeenToItsEnd) {
  const auto conductor = searching();
  Job job(exposed(), {.natural_mhz = 1090, .marks = true, .jitter = 0.02}, conductor.get());
  while (conductor->state().clock_mhz == 0 || conductor->state().managed < 100) job.run(1);
  uint64_t managed = conductor->state().managed, since_ns = 0;
  int blocks = 0;
  while (job.now_ns() < 200'000'000'000u) {
    job.run(1);
    const bool left_alone = conductor->state().managed == managed;
    managed = conductor->state().managed;
    if (left_alone && since_ns == 0) since_ns = job.now_ns();
    if (left_alone || since_ns == 0) continue;
    EXPECT_GT(job.now_ns() - since_ns, 7'000'000'000u);
    since_ns = 0;
    ++blocks;
  }
  EXPECT_GT(blocks, 0);
}

// As where other work on the host comes and goes: a step of the clock costs less than seconds left alone.
TEST(ConductorJob, WhatHasBecomeABitSlowerSoonAfterABlockGoesUpAStep) {
  const auto conductor = searching();
  Job job(exposed(), {.natural_mhz = 1090, .marks = true, .jitter = 0.005}, conductor.get());
  while (!conductor->state().judged || job.now_ns() < 80'000'000'000u) job.run(1);
  const Conductor::State before = conductor->state();
  std::vector<Job::Operation> slower = exposed();
  slower[0].ms *= 1.03;
  job.change(slower);
  const uint64_t changed_ns = job.now_ns();
  while (job.now_ns() < changed_ns + 45'000'000'000u) job.run(1);
  const Conductor::State after = conductor->state();
  EXPECT_EQ(after.iterations - before.iterations, after.managed - before.managed);
  EXPECT_GT(after.clock_mhz, before.clock_mhz);
}

// The rest of a job of hours would go by the same few seconds, told again and again.
TEST(ConductorJob, WhatIsWellKnownIsLookedAtEverMoreRarely) {
  const auto conductor = searching();
  Job job(exposed(), {.natural_mhz = 1090, .marks = true, .jitter = 0.02}, conductor.get());
  while (conductor->state().clock_mhz == 0 || conductor->state().managed < 100) job.run(1);
  std::vector<double> blocks_s;
  uint64_t managed = conductor->state().managed;
  bool before = false;
  while (job.now_ns() < 4'000'000'000'000u) {
    job.run(1);
    const bool left_alone = conductor->state().managed == managed;
    managed = conductor->state().managed;
    if (left_alone && !before) blocks_s.push_back(1e-9 * static_cast<double>(job.now_ns()));
    before = left_alone;
  }
  ASSERT_GE(blocks_s.size(), 4u);
  std::vector<double> apart_s;
  for (size_t each = 1; each < blocks_s.size(); ++each) apart_s.push_back(blocks_s[each] - blocks_s[each - 1]);
  EXPECT_LT(apart_s.front(), 50 * 8);
  EXPECT_NEAR(apart_s.back(), 160 * 8, 80);
}

// Longer sequences, say. What iterations were compared with at first says nothing any more.
TEST_F(ConductorThatFound, AJobThatHasBecomeLongerKeepsItsClock) {
  std::vector<Job::Operation> longer = zero1();
  longer[0].ms *= 1.3;
  job.change(longer);
  job.run(1500);
  EXPECT_NEAR(conductor->state().clock_mhz, found_mhz, 15);
  EXPECT_TRUE(conductor->state().judged);
  EXPECT_LT(conductor->state().slowdown.estimate, 0.01);
}

}  // namespace
}  // namespace powerccl
