// SPDX-License-Identifier: Apache-2.0
#include "policy/steady_part.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "policy/clock_search.h"

namespace powerccl {
namespace {

// A mixture of experts as one GPU sees it: attention that is steady, experts that are drawn, and communication behind
// each, in which it waits for whoever drew most. `slower` is what a clock makes of its computation.
class Experts {
 public:
  uint64_t run(double slower, double attention_deviates = 0.04) {
    std::normal_distribution<double> normal;
    std::exponential_distribution<double> drawn(1 / 6.0);
    const uint64_t start_ns = now();
    for (uint32_t kind = 0; kind < 4; ++kind) {
      const double computes = kind % 2 == 0 ? 8 * (1 + attention_deviates * normal(random_)) : 6 + drawn(random_);
      now_ms_ += computes * slower;
      table->called(++calls_, kind, 450);
      table->started(calls_, now());
      now_ms_ += 5 + drawn(random_);
      table->stopped(calls_, now());
      table->settle();
    }
    return now() - start_ns;
  }
  uint64_t now() const { return static_cast<uint64_t>(now_ms_ * 1e6); }

  std::unique_ptr<Timetable> table = std::make_unique<Timetable>();

 private:
  std::mt19937_64 random_{7};
  double now_ms_ = 1000;
  uint64_t calls_ = 0;
};

TEST(SteadyPart, IsWhatTakesTheSameTimeInEachIteration) {
  Experts job;
  for (int i = 0; i < 100; ++i) job.run(1);
  ASSERT_TRUE(job.table->settled());
  auto part = std::make_unique<SteadyPart>();
  uint64_t i = 0;
  for (; i < 20; ++i) {
    ASSERT_TRUE(job.table->complete(i));
    job.table->learn(i, true);
    part->learn(*job.table, i);
  }
  part->choose(*job.table);
  EXPECT_NEAR(part->of(*job.table, i), 16e6, 1.5e6);
  EXPECT_NEAR(part->weight(), (16 + 24) / 84.0, 0.1);
  EXPECT_EQ(part->of(*job.table, 1000), 0);  // not seen
}

TEST(SteadyPart, ThereIsNoneWhereEverythingIsDrawnOrLittleWasSeen) {
  Experts job;
  for (int i = 0; i < 100; ++i) job.run(1, 0.4);
  auto part = std::make_unique<SteadyPart>();
  for (uint64_t i = 0; i < 20; ++i) {
    job.table->learn(i, true);
    part->learn(*job.table, i);
  }
  part->choose(*job.table);
  EXPECT_EQ(part->of(*job.table, 20), 0);
  Experts steady;
  for (int i = 0; i < 100; ++i) steady.run(1);
  auto early = std::make_unique<SteadyPart>();
  for (uint64_t i = 0; i < 4; ++i) {
    steady.table->learn(i, true);
    early->learn(*steady.table, i);
  }
  early->choose(*steady.table);
  EXPECT_EQ(early->of(*steady.table, 5), 0);
}

// What a mixture of experts is given a clock by: its iterations differ by so much that their length tells nothing.
TEST(SteadyPart, FindsAClockThatTheLengthOfIterationsDoesNotTell) {
  constexpr double kNatural = 1090;
  int with = 0, without = 0;
  double worst = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool steady : {true, false}) {
      std::mt19937_64 random(seed);
      std::normal_distribution<double> normal;
      ClockSearch::Terms terms = {.most_mhz = 1590, .least_mhz = 450, .first_mhz = kNatural, .slowdown = 0.006};
      if (steady) terms.weight = 0.5;
      ClockSearch search;
      search.begin(terms, 0);
      for (uint64_t i = 0; i < 3000 && !search.done(); ++i) {
        const uint32_t mhz = search.clock(i);
        const double slower = mhz == 0 ? 1 : kNatural / std::min<double>(mhz, kNatural);
        const double length = 0.5 + 0.5 * slower + 0.06 * normal(random);
        const double part = slower * (1 + 0.01 * normal(random));
        search.iteration(i, static_cast<uint64_t>(1e8 * length), 0.5, steady ? 2e7 * part : 0);
      }
      const uint32_t found = search.found_mhz();
      const bool low = found != 0 && found < 1.02 * kNatural;
      if (!steady) without += low;
      if (!steady || !low) continue;
      ++with;
      worst = std::max(worst, 0.5 * (kNatural / std::min<double>(found, kNatural) - 1));
    }
  }
  EXPECT_GE(with, 18);
  EXPECT_LT(without, 12);
  EXPECT_LT(worst, 0.012);
}

}  // namespace
}  // namespace powerccl
