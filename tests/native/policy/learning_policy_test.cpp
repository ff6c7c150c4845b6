// SPDX-License-Identifier: Apache-2.0
#include "policy/learning_policy.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace powerccl {
namespace {

constexpr double kNaturalMhz = 1500;

// A rank's iterations: four collectives, behind computation of so many ms each as `ms` says of the clock; and so many
// ms more in each collective, of which `waits` are for other ranks.
class Job {
 public:
  using Length = std::function<double(double mhz, uint64_t iteration)>;
  explicit Job(Length ms, double others_ms = 0, bool graphs = false, std::shared_ptr<NodeState> node = nullptr)
      : ms_(std::move(ms)), others_ms_(others_ms), graphs_(graphs) {
    if (node) node_ = std::move(node);
    policy_->begin({0.01, false, node_.get()});
  }

  void run(double seconds) {
    const uint64_t until_ns = now_ns_ + static_cast<uint64_t>(seconds * 1e9);
    for (; now_ns_ < until_ns; ++iteration_) {
      const uint64_t began_ns = now_ns_;
      for (uint32_t i = 0; i < kCalls; ++i) one_call(i);
      const auto ms = static_cast<double>(now_ns_ - began_ns) * 1e-6;
      total_ms_ += ms;
      longest_ms_ = std::max(longest_ms_, ms);
      if (wanted_.mhz != 0) ++lowered_;
    }
  }

  // The lowest baseline clock of other ranks.
  void others_have(double mhz) { others_mhz_ = mhz; }
  // Whether what the policy wants is done.
  void grant(bool granted) { granted_ = granted; }
  // Whether the GPU does what was granted.
  void honour(bool honoured) { honoured_ = honoured; }
  // What the GPU is limited to, by its power limit or by heat.
  void limit(double mhz, uint32_t limit_mw, uint64_t reasons) {
    natural_mhz_ = mhz;
    limit_mw_ = limit_mw;
    reasons_ = reasons;
  }

  double mhz() const {
    return granted_ && honoured_ && wanted_.mhz != 0 ? std::min<double>(wanted_.mhz, natural_mhz_) : natural_mhz_;
  }
  double lowest_mhz() const { return lowest_mhz_; }
  double mean_ms() const { return total_ms_ / static_cast<double>(iteration_); }
  uint64_t iterations() const { return iteration_; }
  uint64_t lowered() const { return lowered_; }
  LearningPolicy& policy() { return *policy_; }
  NodeState& node() { return *node_; }
  uint64_t calls() const { return calls_; }
  uint64_t now_ns() const { return now_ns_; }

 private:
  static constexpr uint32_t kCalls = 4;
  static constexpr double kTransferMs = 10;

  void one_call(uint32_t kind) {
    const double computes_ms = ms_(mhz(), iteration_) / kCalls - kTransferMs;
    const uint64_t call = ++calls_;
    graphs_ ? policy_->graph_called(call, kind + 1) : policy_->called(call, kind + 1);
    const uint64_t arrives_ns = now_ns_ + static_cast<uint64_t>(computes_ms * 1e6);
    const uint64_t all_ns = std::max(arrives_ns, now_ns_ + static_cast<uint64_t>(others_ms_ / kCalls * 1e6));
    now_ns_ = arrives_ns;
    ask();
    if (policy_->wants_sample()) {
      policy_->sampled({static_cast<uint32_t>(mhz()), limit_mw_, reasons_});
      if (others_mhz_ != 0) node_->lowest_mhz(0, others_mhz_);
    }
    policy_->started(call, now_ns_);
    ask();  // the new clock is there when computation goes on
    now_ns_ = all_ns + static_cast<uint64_t>(kTransferMs * 1e6);
    node_->least_us(kind + 1, static_cast<uint32_t>(kTransferMs * 1e3));  // as the rank that comes last says
    policy_->stopped(call, now_ns_);
  }

  void ask() {
    wanted_ = policy_->wanted(now_ns_);
    if (!granted_ && wanted_.mhz != 0) policy_->withheld();
    lowest_mhz_ = std::min(lowest_mhz_, mhz());
  }

  Length ms_;
  double others_ms_, others_mhz_ = 0, natural_mhz_ = kNaturalMhz;
  uint32_t limit_mw_ = 0;
  uint64_t reasons_ = 0;
  bool graphs_, granted_ = true, honoured_ = true;
  std::shared_ptr<NodeState> node_ = std::make_shared<NodeState>();
  std::unique_ptr<LearningPolicy> policy_ = std::make_unique<LearningPolicy>();
  ClockPolicy::Wanted wanted_;
  uint64_t now_ns_ = 1000000000, calls_ = 0, iteration_ = 0, lowered_ = 0;
  double lowest_mhz_ = kNaturalMhz, longest_ms_ = 0, total_ms_ = 0;
};

Job::Length following(double share) {
  return [share](double mhz, uint64_t) { return 100 * (1 + share * (kNaturalMhz / mhz - 1)); };
}

TEST(LearningPolicy, TheLessTimeFollowsTheClockTheLowerItIs) {
  Job all(following(1)), half(following(0.5)), tenth(following(0.1));
  for (Job* job : {&all, &half, &tenth}) job->run(300);
  EXPECT_NEAR(all.lowest_mhz(), 1500 / 1.01, 5);
  EXPECT_NEAR(half.lowest_mhz(), 1500 / 1.02, 8);
  EXPECT_LT(tenth.lowest_mhz(), 1390);
  EXPECT_GT(tenth.lowest_mhz(), 1500 / 1.12);
}

TEST(LearningPolicy, ABudgetOfNothingTakesWhatCostsNothing) {
  Job waits(following(1), 130), dear(following(0.5));
  for (Job* job : {&waits, &dear}) {
    job->policy().begin({0, false, &job->node()});
    job->run(300);
  }
  EXPECT_LT(waits.lowest_mhz(), 1400);
  EXPECT_LT(dear.mean_ms(), 100.2);
}

TEST(LearningPolicy, WhatJumpsBelowAClockIsLeftAtOnce) {
  Job job([](double mhz, uint64_t) { return mhz < 1200 ? 130.0 : 100.0; });
  job.run(600);
  EXPECT_GT(job.lowest_mhz(), 0.94 * 1200) << "no more than a step below";
  EXPECT_LT(job.mean_ms(), 100.5) << "a round that costs so much is broken off";
  job.run(60);
  EXPECT_GE(job.policy().state().clock_mhz, 1200u);
  EXPECT_LT(job.policy().state().clock_mhz, 1230u);
}

TEST(LearningPolicy, WhereEachClockCostsTooMuchItIsHardlyEverTried) {
  Job job([](double mhz, uint64_t) { return mhz < kNaturalMhz ? 130.0 : 100.0; });
  job.run(1200);
  EXPECT_LT(job.mean_ms(), 100.5);
  EXPECT_GT(job.lowered(), 0u);
  EXPECT_LT(job.lowered(), job.iterations() / 40);
  EXPECT_GT(job.node().measured_until().calls, 0u) << "so that the others measure as well";
  EXPECT_FALSE(job.node().measured_until().suspected);
}

TEST(LearningPolicy, AJobThatChangesIsLeftAloneAndLearntAnew) {
  const auto changing = [](double mhz, uint64_t iteration) {
    return iteration < 3000 ? 100.0 : 120 * (1 + (kNaturalMhz / mhz - 1));
  };
  Job job(changing);
  job.run(290);
  EXPECT_LT(job.policy().state().clock_mhz, 1000u) << "nothing followed the clock";
  job.run(400);
  EXPECT_GT(job.policy().state().clock_mhz, 1450u);
  EXPECT_LT(job.mean_ms(), 1.01 * (3000 * 100 + static_cast<double>(job.iterations() - 3000) * 120) /
                               static_cast<double>(job.iterations()));
}

TEST(LearningPolicy, NothingIsManagedUntilTheJobIsKnown) {
  Job job(following(0));
  job.run(3);
  EXPECT_EQ(job.lowest_mhz(), kNaturalMhz);
  job.run(60);
  EXPECT_LT(job.lowest_mhz(), kNaturalMhz);
  job.policy().rest(job.now_ns());
  EXPECT_EQ(job.policy().wanted(job.now_ns()).mhz, 0u) << "the communicators are gone";
}

// As in generation, whose tokens look like iterations at first.
TEST(LearningPolicy, WhatWasTakenForIterationsAndNeverManagedIsNotCounted) {
  const auto policy = std::make_unique<LearningPolicy>();
  policy->begin({0.01, true, nullptr});
  uint64_t now_ns = 1000000000, call = 0;
  const auto play = [&](uint32_t calls, uint32_t iterations) {
    for (uint32_t i = 0; i < calls * iterations; ++i) {
      policy->called(++call, 1 + i % calls);
      now_ns += 10000000;
      policy->started(call, now_ns);
      policy->stopped(call, now_ns + 1000000);
      policy->wanted(now_ns);
    }
  };
  play(3, 60);
  EXPECT_GT(policy->state().iterations, 40u);
  play(20, 30);
  EXPECT_EQ(policy->state().period, 20u);
  EXPECT_LT(policy->state().iterations, 30u);
}

// Iterations that differ by chance, and now and then one with a checkpoint.
TEST(LearningPolicy, ChanceIsNoReason) {
  uint32_t state = 1;
  const auto noisy = [&state](double mhz, uint64_t iteration) {
    state = state * 1664525 + 1013904223;
    const double chance = (state >> 16) / 65536.0 - 0.5;
    return 100 * (1 + (kNaturalMhz / mhz - 1)) * (1 + 0.04 * chance) + (iteration % 200 == 199 ? 900 : 0);
  };
  Job job(noisy);
  job.run(900);
  EXPECT_GT(job.lowest_mhz(), 1500 / 1.04);
}

// A GPU that takes half a minute to be as quick as ever again, once its clock was lowered at all.
TEST(LearningPolicy, ReferencesAreNotBelievedWhereTheyAreNoExample) {
  uint64_t last_low = 0;
  const auto remembers = [&last_low](double mhz, uint64_t iteration) {
    if (mhz < kNaturalMhz) last_low = iteration;
    return last_low != 0 && iteration - last_low < 300 ? 106.0 : 100.0;
  };
  Job job(remembers);
  job.run(1800);
  EXPECT_LT(job.mean_ms(), 101);
}

// A GPU at its power limit that has saved power is faster for ten seconds, and then as ever.
TEST(LearningPolicy, ReferencesThatAreFasterThanTheBaselineAreNotBelievedEither) {
  uint64_t last_low = 0;
  const auto rested = [&last_low](double mhz, uint64_t iteration) {
    if (mhz < kNaturalMhz) last_low = iteration;
    return mhz == kNaturalMhz && last_low != 0 && iteration - last_low < 100 ? 98.0 : 100.0;
  };
  Job job(rested);
  job.run(600);
  EXPECT_LT(job.policy().state().clock_mhz, 1000u) << "nothing takes longer than the baseline";
  EXPECT_GT(job.lowered(), job.iterations() / 2);
}

// Times of iterations with noise of half a percent, of which `share` follows the clock.
Job::Length noisy(double share, std::function<double(uint64_t)> other, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> chance(1, 0.005);
  return [=](double mhz, uint64_t iteration) mutable {
    return 100 * (1 + share * (kNaturalMhz / mhz - 1)) * other(iteration) * chance(random);
  };
}

// A minute that was slow for another reason, and later faster for good: no baseline is one for ever.
TEST(LearningPolicy, ADisturbanceDoesNotSwitchTheGuardOff) {
  const auto other = [](uint64_t iteration) {
    return iteration > 6000 && iteration < 6600 ? 1.05 : iteration > 15000 ? 0.95 : 1.0;
  };
  for (uint64_t seed = 1; seed < 9; ++seed) {
    Job job(noisy(0.5, other, seed)), plain(noisy(0, other, seed));
    job.run(3600);
    while (plain.iterations() < job.iterations()) plain.run(0.05);
    EXPECT_LT(job.mean_ms(), 1.01 * plain.mean_ms()) << seed;
    EXPECT_GT(job.lowered(), job.iterations() / 2) << seed;
  }
}

// Faster while references are taken to be biased: an outdated baseline would allow ever lower clocks.
TEST(LearningPolicy, WhatIsFasterThanTheBaselineEndsIt) {
  std::vector<double> minutes(120);  // ms of 600 iterations each
  uint64_t last_low = 0;
  Job job([&](double mhz, uint64_t iteration) {
    if (mhz < kNaturalMhz) last_low = iteration;
    const bool rested = mhz == kNaturalMhz && last_low != 0 && iteration - last_low < 100;
    const double now = iteration < 8000 ? 1 : 0.95;
    const double ms = now * (rested ? 98 : 100 * (1 + 0.5 * (kNaturalMhz / mhz - 1)));
    minutes[iteration / 600] += ms / 4;  // of four calls
    return ms;
  });
  job.run(3600);
  EXPECT_LT(*std::max_element(minutes.begin() + 15, minutes.end()) / 600, 0.95 * 103);
}

// What was harmful once may not be so any more.
TEST(LearningPolicy, AClockIsNotHarmfulForEver) {
  for (uint64_t seed = 1; seed < 9; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> chance(1, 0.005);
    Job job([&](double mhz, uint64_t iteration) {
      const double share = iteration < 6000 ? 1 : 0.1;
      return 100 * (1 + share * (kNaturalMhz / mhz - 1)) * chance(random);
    });
    job.run(3600);
    EXPECT_LT(job.policy().state().clock_mhz, 0.97 * kNaturalMhz) << seed;
  }
}

// A random walk by 3 % in an hour.
TEST(LearningPolicy, AJobThatDriftsKeepsItsBudget) {
  for (uint64_t seed = 1; seed < 9; ++seed) {
    const auto walk = [random = std::mt19937_64(seed), at = 1.0](uint64_t) mutable {
      return at *= 1 + std::normal_distribution<double>(0, 0.03 / 190)(random);  // of the root of an hour's iterations
    };
    Job job(noisy(0.5, walk, seed)), plain(noisy(0, walk, seed));
    job.run(3600);
    while (plain.iterations() < job.iterations()) plain.run(0.05);
    EXPECT_LT(job.mean_ms(), 1.01 * plain.mean_ms()) << seed;
  }
}

// Clock calls stall what runs, at the edges of blocks.
TEST(LearningPolicy, WhatStepsBetweenClocksCostIsNoticed) {
  for (const double stall_ms : {20.0, 100.0}) {
    double last_mhz = kNaturalMhz;
    Job job([&](double mhz, uint64_t) {
      const double stall = mhz != last_mhz ? 4 * stall_ms : 0;  // a quarter of it in each of four calls
      last_mhz = mhz;
      return 100 * (1 + 0.5 * (kNaturalMhz / mhz - 1)) + stall;
    });
    job.run(1800);
    EXPECT_LT(job.mean_ms(), 101) << stall_ms;
    EXPECT_EQ(job.lowered() > job.iterations() / 2, stall_ms < 50) << stall_ms;
  }
}

TEST(LearningPolicy, EqualGpusOfAHostHaveOneClock) {
  const auto node = std::make_shared<NodeState>();
  std::vector<std::unique_ptr<Job>> ranks;
  for (uint64_t seed = 1; seed < 9; ++seed) {
    ranks.push_back(std::make_unique<Job>(noisy(0.5, [](uint64_t) { return 1.0; }, seed), 0, false, node));
  }
  for (int second = 0; second < 600; ++second) {
    for (auto& rank : ranks) rank->run(1);
  }
  for (auto& rank : ranks) {
    EXPECT_NEAR(rank->policy().state().clock_mhz, ranks[0]->policy().state().clock_mhz, 15);
  }
}

TEST(NodeState, TheFirstRankNamesTheClock) {
  auto node = std::make_unique<NodeState>();
  EXPECT_EQ(node->agree_on_clock(100, 1400), 1400);
  EXPECT_EQ(node->agree_on_clock(100, 1300), 1400);
  EXPECT_EQ(node->agree_on_clock(200, 1300.5), 1300.5);
  EXPECT_EQ(node->agree_on_clock(100, 1200), 1200) << "a late rank judges alone";
  EXPECT_EQ(node->agree_on_clock(200, 1), 1300.5);
}

// One that went on would spoil what the others measure.
TEST(LearningPolicy, RanksOfAHostMeasureTheBaselineTogether) {
  Job job(following(0.5));
  job.run(60);
  ASSERT_LT(job.lowest_mhz(), kNaturalMhz);
  const uint64_t before = job.lowered();
  job.node().measure_until(job.calls() + 4 * 300, true);  // 300 iterations: 30 s, three rounds
  job.run(20);
  EXPECT_LE(job.lowered(), before + 1);
  job.run(40);
  EXPECT_GT(job.lowered(), before + 100);
}

TEST(LearningPolicy, ARankThatWaitsForOthersComputesSlowly) {
  Job waits([](double mhz, uint64_t) { return 40 + 60 * kNaturalMhz / mhz; }, 100);
  waits.run(120);
  EXPECT_LT(waits.lowest_mhz(), 1000) << "of the 100 ms that others take it needs 60";
  EXPECT_GT(waits.lowest_mhz(), 0.57 * kNaturalMhz);
  EXPECT_LT(waits.mean_ms(), 140.2);
}

TEST(LearningPolicy, HowLongAGraphTakesSaysNothingAboutWaiting) {
  Job job(following(1), 0, true);
  job.run(120);
  EXPECT_LT(job.lowest_mhz(), kNaturalMhz);
  EXPECT_GT(job.lowest_mhz(), 1500 / 1.02);
}

// At a power limit GPUs differ. This one waits for another, until its clock is lower than that one's.
TEST(LearningPolicy, TheSlowestGpuSetsThePace) {
  Job job([](double mhz, uint64_t) { return mhz < 1400 ? 100 * 1400 / mhz : 100.0; });
  job.others_have(1400);
  job.run(30);
  EXPECT_NEAR(job.lowest_mhz(), 1400 / 1.01, 5);
  EXPECT_LT(job.mean_ms(), 101);
}

TEST(LearningPolicy, ARankThatDoesOtherWorkGoesBackToItsOwnClock) {
  Job job(following(1));
  job.others_have(1200);
  job.run(60);
  EXPECT_LT(job.lowest_mhz(), 1200);
  EXPECT_NEAR(job.policy().state().clock_mhz, 1500 / 1.01, 10);
  job.run(240);
  EXPECT_LT(job.mean_ms(), 101);
}

// The first clock is safe whatever the job does, so it need not wait for whole rounds.
TEST(LearningPolicy, TheFirstClockComesWithin20SecondsOrTenIterations) {
  for (const double seconds : {0.05, 0.3, 1.0, 2.9, 10.0}) {
    Job job([seconds](double, uint64_t) { return 1000 * seconds; });
    job.run(std::max(20.0, 10 * seconds));
    EXPECT_GT(job.lowered(), 0u) << seconds;
  }
}

TEST(LearningPolicy, AnotherLimitOfTheGpuIsAReasonToMeasureAgain) {
  constexpr uint64_t kHeat = 0x20;
  for (const bool heat : {false, true}) {
    Job job(following(0.5));
    job.limit(1200, heat ? 700000 : 500000, heat ? kHeat : 0);
    job.run(200);  // rounds are long by now
    ASSERT_LT(job.policy().state().clock_mhz, 1200u);
    job.limit(kNaturalMhz, 700000, 0);
    const uint64_t lowered = job.lowered();
    job.run(4);
    EXPECT_LT(job.lowered(), lowered + 40 - 14) << "a block at the default clock, which begins within two seconds";
    job.run(100);
    EXPECT_GT(job.policy().state().clock_mhz, 1400u);
    EXPECT_GT(job.lowered(), lowered + 500);
  }
}

TEST(LearningPolicy, AGpuThatDoesNotDoWhatItIsToldTeachesNothing) {
  Job job(following(1));
  job.honour(false);
  job.run(300);
  EXPECT_FALSE(job.policy().state().judged);
  EXPECT_GT(job.policy().state().clock_mhz, 1400u) << "no more than a step below";
  const double before_ms = job.mean_ms() * static_cast<double>(job.iterations());
  const uint64_t before = job.iterations();
  job.honour(true);
  job.run(60);
  const double after_ms = job.mean_ms() * static_cast<double>(job.iterations()) - before_ms;
  EXPECT_LT(after_ms / static_cast<double>(job.iterations() - before), 102);
}

TEST(NodeState, ALaterMeasurementReplacesTheLowestClock) {
  auto node = std::make_unique<NodeState>();
  EXPECT_EQ(node->lowest_mhz(0, 1200), 1200);
  EXPECT_EQ(node->lowest_mhz(500, 1500), 1500);
  EXPECT_EQ(node->lowest_mhz(500, 1480), 1480);
  EXPECT_EQ(node->lowest_mhz(0, 1490), 1480) << "a late rank learns it as well";
}

TEST(NodeState, TheLowestClockRisesSlowly) {
  auto node = std::make_unique<NodeState>();
  EXPECT_EQ(node->lowest_mhz(0, 1500), 1500);
  EXPECT_EQ(node->lowest_mhz(0, 1400.5), 1400.5);
  for (int i = 0; i < 10; ++i) EXPECT_LT(node->lowest_mhz(0, 1500), 1405);
  for (int i = 0; i < 5000; ++i) node->lowest_mhz(0, 1500);
  EXPECT_NEAR(node->lowest_mhz(0, 1500), 1500, 20);
}

// A lease is lost: iterations at the default clock do not tell that the clock costs nothing, or that there is slack.
TEST(LearningPolicy, WhatIsNotInForceIsNotJudged) {
  Job job(following(0.5)), waits([](double mhz, uint64_t) { return 40 + 60 * kNaturalMhz / mhz; }, 100);
  for (Job* each : {&job, &waits}) {
    each->run(120);
    const double lowest = each->lowest_mhz();
    const uint64_t managed = each->policy().state().managed;
    each->grant(false);
    each->run(120);
    EXPECT_LE(each->policy().state().managed, managed + 100);
    each->grant(true);
    each->run(20);
    EXPECT_NEAR(each->lowest_mhz(), lowest, 0.01 * lowest);
  }
}

// Whatever comes in whatever order: once the communicators are gone the default clock is wanted.
TEST(LearningPolicy, NoOrderOfEventsLeavesAClockBehind) {
  const char* asked = getenv("POWERCCL_TEST_ORDERS");
  const auto orders = asked != nullptr ? strtol(asked, nullptr, 10) : 2000;
  std::mt19937_64 random(1);
  const auto below = [&random](uint64_t most) { return random() % most; };
  const auto node = std::make_unique<NodeState>();
  int wanted = 0;
  for (long order = 0; order < orders; ++order) {
    const auto policy = std::make_unique<LearningPolicy>();
    policy->begin({0.01, below(8) == 0, below(4) == 0 ? nullptr : node.get()});
    // Most are like a job, with something wrong in between: that comes farther than noise does.
    const uint64_t period = 1 + below(4), length_ns = 1 + below(400000000), wrong = below(3) == 0 ? 4 : 200;
    uint64_t now_ns = below(2) * 1000000000, call = 0;
    for (uint64_t steps = 50 + below(400); steps > 0; --steps) {
      now_ns += below(wrong) == 0 ? below(2 * length_ns) : length_ns / period / 2;
      if (below(wrong) == 0) now_ns -= std::min(now_ns, below(length_ns));
      const uint64_t number = below(wrong) == 0 ? call - below(5) : ++call;
      if (below(wrong) == 0) policy->rest(now_ns);
      below(wrong) == 0 ? policy->graph_called(number, 7) : policy->called(number, 1 + number % period);
      if (below(wrong) != 0) policy->started(number, now_ns);
      wanted += policy->wanted(now_ns).mhz != 0 ? 1 : 0;
      if (policy->wants_sample()) policy->sampled({static_cast<uint32_t>(below(wrong) == 0 ? 0 : 1400 + below(100))});
      if (below(wrong) == 0) policy->waited(number, now_ns);
      now_ns += length_ns / period / 2;
      if (below(wrong) != 0) policy->stopped(number, now_ns);
      policy->wanted(now_ns);
    }
    policy->rest(now_ns);
    ASSERT_EQ(policy->wanted(now_ns).mhz, 0u) << "order " << order;
  }
  EXPECT_GT(wanted, 0) << "some came as far as a clock";
}

}  // namespace
}  // namespace powerccl
