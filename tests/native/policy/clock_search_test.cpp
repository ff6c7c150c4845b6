// SPDX-License-Identifier: Apache-2.0
#include "policy/clock_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace powerccl {
namespace {

// A job whose computation, this share of its iterations, runs at `natural_mhz` by itself.
struct Job {
  double natural_mhz, computing, noise;
  std::mt19937_64 random{3};

  uint64_t iteration(uint32_t mhz) {
    const double clock = mhz == 0 ? natural_mhz : std::min<double>(mhz, natural_mhz);
    const double slower = 1 + computing * (natural_mhz / clock - 1);
    return static_cast<uint64_t>(1e8 * slower * (1 + noise * std::normal_distribution<double>()(random)));
  }
};

struct Found {
  uint32_t mhz, iterations;
  double worst;  // of the iterations at a clock that was tried
};
Found find(Job job, ClockSearch::Terms terms) {
  ClockSearch search;
  search.begin(terms, 10);
  uint64_t i = 0;
  double worst = 0;
  for (; i < 2000 && !search.done(); ++i) {
    const uint64_t duration = job.iteration(search.clock(i));
    worst = std::max(worst, static_cast<double>(duration) / 1e8);
    search.iteration(i, duration, job.computing);
  }
  EXPECT_TRUE(search.done());
  return {search.found_mhz(), static_cast<uint32_t>(i), worst};
}

constexpr ClockSearch::Terms kTerms = {.most_mhz = 1590, .least_mhz = 450, .slowdown = 0.009};

TEST(ClockSearch, FindsTheClockThatTheBudgetAllows) {
  for (const double natural : {800.0, 1090.0, 1290.0}) {
    for (const double computing : {0.25, 0.6, 0.95}) {
      const Found found = find({natural, computing, 0.002}, kTerms);
      const double best = natural / (1 + 0.009 / computing);
      EXPECT_NEAR(found.mhz, best, 35) << natural << " " << computing;
      EXPECT_LT(found.iterations, 140u) << natural << " " << computing;
    }
  }
}

TEST(ClockSearch, IsQuickWhereItIsToldWhereToLook) {
  ClockSearch::Terms terms = kTerms;
  terms.first_mhz = 1090;
  const Found found = find({1090, 0.6, 0.002}, terms);
  EXPECT_NEAR(found.mhz, 1075, 30);
  EXPECT_LT(found.iterations, 100u);
  EXPECT_LT(found.worst, 1.12);
}

TEST(ClockSearch, NothingIsToBeHadWhereComputationUsesTheHighestClock) {
  const Found found = find({1590, 0.9, 0.002}, kTerms);
  EXPECT_TRUE(found.mhz == 0 || found.mhz >= 1545) << found.mhz;
}

TEST(ClockSearch, NoiseMakesItSlowerAndNotWrong) {
  const Found found = find({1090, 0.6, 0.01}, kTerms);
  EXPECT_NEAR(found.mhz, 1075, 90);
}

// Iterations whose length is drawn, as those of a mixture of experts: long ones are no disturbance, and leaving out
// more of them on one side than on the other made clocks look harmless that were not.
TEST(ClockSearch, DrawnIterationsAreComparedFairly) {
  constexpr double kNatural = 1090, kComputing = 0.9;
  double slowdown = 0;
  int found = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> drawn(1 / 0.08);
    ClockSearch search;
    ClockSearch::Terms terms = kTerms;
    terms.first_mhz = kNatural;
    terms.slowdown = 0.006;
    terms.reference = 36;
    terms.block = 9;
    search.begin(terms, 0);
    for (uint64_t i = 0; i < 3000 && !search.done(); ++i) {
      const uint32_t mhz = search.clock(i);
      const double slower = mhz == 0 ? 1 : 1 + kComputing * (kNatural / std::min<double>(mhz, kNatural) - 1);
      search.iteration(i, static_cast<uint64_t>(1e8 * slower * (1 + drawn(random))), kComputing);
    }
    const double mhz = search.found_mhz() == 0 ? kNatural : std::min<double>(search.found_mhz(), kNatural);
    slowdown += kComputing * (kNatural / mhz - 1);
    ++found;
  }
  EXPECT_LT(slowdown / found, 0.006);  // 0.012 when the longest of each block was left out
}

TEST(ClockSearch, RaisesTowardsTheDefault) {
  ClockSearch search;
  search.begin(kTerms, 0);
  Job job{1090, 0.6, 0};
  for (uint64_t i = 0; !search.done(); ++i) search.iteration(i, job.iteration(search.clock(i)), 0.6);
  uint32_t before = search.found_mhz();
  ASSERT_GT(before, 1000u);
  for (int i = 0; i < 20 && search.found_mhz() != 0; ++i) {
    search.raise(0.05);
    EXPECT_TRUE(search.found_mhz() > before || search.found_mhz() == 0);
    before = search.found_mhz();
  }
  EXPECT_EQ(search.found_mhz(), 0u);
}

// Mean over a cycle of turns.
double mean_mhz(const ClockSearch& search, const ClockSearch::Terms& terms) {
  double sum = 0;
  for (uint64_t i = 0; i < 4 * terms.block; ++i) sum += search.clock(10000 * terms.block + i);
  return sum / (4 * terms.block);
}

TEST(ClockSearch, IsLoweredByWhatIsLeftAndGoesHalfWayBack) {
  ClockSearch search;
  EXPECT_FALSE(search.lower(0.03));  // nothing is found yet
  search.begin(kTerms, 0);
  Job job{1090, 0.6, 0};
  for (uint64_t i = 0; !search.done(); ++i) search.iteration(i, job.iteration(search.clock(i)), 0.6);
  const uint32_t found = search.found_mhz();
  ASSERT_GT(found, 1000u);
  EXPECT_FALSE(search.lower(0.001));  // less than half of a quarter of a step
  EXPECT_EQ(search.found_mhz(), found);
  EXPECT_FALSE(search.lowered());
  ASSERT_TRUE(search.lower(0.03));
  EXPECT_TRUE(search.lowered());
  EXPECT_NEAR(mean_mhz(search, kTerms), 0.97 * found, 4);
  ASSERT_TRUE(search.lower(0.5));  // never far at a time
  EXPECT_NEAR(mean_mhz(search, kTerms), 0.97 * 0.92 * found, 6);
  search.raise(0.01);
  EXPECT_NEAR(mean_mhz(search, kTerms), 0.97 * 0.96 * found, 6);
  EXPECT_TRUE(search.lowered());
  ASSERT_TRUE(search.lower(0.05));  // not as low as was too much
  EXPECT_NEAR(mean_mhz(search, kTerms), 0.97 * 0.92 * found + 15 / 4.0, 6);
  EXPECT_FALSE(search.lower(0.03));
  search.raise(0.01);
  for (int i = 0; i < 10 && search.lowered(); ++i) search.raise(0.01);
  EXPECT_NEAR(mean_mhz(search, kTerms), 0.97 * 0.96 * found, 6);
}

TEST(ClockSearch, PartsOfAStepAreHadByTurns) {
  ClockSearch search;
  search.begin(kTerms, 0);
  Job job{1090, 0.6, 0};
  for (uint64_t i = 0; !search.done(); ++i) search.iteration(i, job.iteration(search.clock(i)), 0.6);
  const uint32_t found = search.found_mhz();
  for (uint32_t quarters = 1; quarters <= 3; ++quarters) {
    const double before = mean_mhz(search, kTerms);
    ASSERT_TRUE(search.lower(4.5 / before));
    EXPECT_DOUBLE_EQ(mean_mhz(search, kTerms), found - 15 * quarters / 4.0);
    EXPECT_EQ(search.found_mhz(), quarters > 2 ? found - 15 : found);  // what most iterations have
    uint32_t changes = 0;
    for (uint64_t i = 1; i < 400 * kTerms.block; ++i) changes += search.clock(i) != search.clock(i - 1) ? 1 : 0;
    EXPECT_LE(changes, 200u);  // two in a cycle
    for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(search.clock(i) == found || search.clock(i) == found - 15);
  }
}

TEST(ClockSearch, BeginsWithWhatWasFoundBefore) {
  ClockSearch::Terms terms = kTerms;
  terms.guess_mhz = find({1090, 0.6, 0}, terms).mhz;
  ASSERT_NE(terms.guess_mhz, 0u);
  ClockSearch search;
  search.begin(terms, 0);
  EXPECT_EQ(search.clock(terms.reference), terms.guess_mhz);
  terms.first_mhz = 1300;  // it says more than where computation seems to run by itself
  search.begin(terms, 0);
  EXPECT_EQ(search.clock(terms.reference), terms.guess_mhz);
  EXPECT_EQ(find({1090, 0.6, 0}, terms).mhz, terms.guess_mhz);
  EXPECT_NEAR(find({900, 0.6, 0}, terms).mhz, find({900, 0.6, 0}, kTerms).mhz, 30);  // a guess, no more
}

TEST(ClockSearch, ReferenceIterationsAreLeftAlone) {
  ClockSearch search;
  ClockSearch::Terms terms = kTerms;
  terms.between = 5;
  search.begin(terms, 10);
  EXPECT_FALSE(search.reference(9));
  EXPECT_TRUE(search.reference(10));
  EXPECT_TRUE(search.reference(21));
  EXPECT_FALSE(search.reference(22));  // windows settle
  EXPECT_EQ(search.clock(22), 0u);
  EXPECT_NE(search.clock(27), 0u);
}

// What cannot be told from chance is not counted on: too slow a clock would stay for hours.
TEST(ClockSearch, NoisyJobsAreNotSlowedByChance) {
  ClockSearch::Terms terms = kTerms;
  terms.slowdown = 0.005;
  terms.most = 0.01;
  double sum = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Job job{1090, 0.7, 0.06};
    job.random.seed(seed);
    const Found found = find(job, terms);
    const double clock = found.mhz == 0 ? 1090 : std::min<double>(found.mhz, 1090);
    const double slowdown = 0.7 * (1090 / clock - 1);
    EXPECT_LT(slowdown, 0.1) << seed;
    sum += slowdown;
  }
  EXPECT_LT(sum / 40, 0.015);
}

TEST(ClockSearch, IterationsThatDifferAreComparedWithMoreOfThem) {
  ClockSearch search;
  search.begin(kTerms, 0);
  Job calm{1090, 0.7, 0.001}, noisy{1090, 0.7, 0.06};
  for (uint64_t i = 0; i < kTerms.reference; ++i) search.iteration(i, calm.iteration(0), 0.7);
  EXPECT_FALSE(search.first_reference(kTerms.reference));
  search.begin(kTerms, 0);
  for (uint64_t i = 0; i < kTerms.reference; ++i) search.iteration(i, noisy.iteration(0), 0.7);
  EXPECT_TRUE(search.first_reference(kTerms.reference));
  for (uint64_t i = kTerms.reference; i < 100; ++i) search.iteration(i, noisy.iteration(search.clock(i)), 0.7);
  EXPECT_FALSE(search.first_reference(100));
}

// Windows that make iterations so much longer, once they have settled.
bool windows_too_slow(double longer, double noise) {
  ClockSearch::Terms terms = kTerms;
  terms.between = 16;
  ClockSearch search;
  search.begin(terms, 0);
  Job job{1090, 0.7, noise};
  uint64_t i = 0;
  for (; search.first_reference(i); ++i) search.iteration(i, job.iteration(0), 0.7);
  for (uint32_t k = 0; k < terms.between; ++k, ++i) {
    const double times = k < 8 ? 1.2 : 1 + longer;  // the first ones shorten what turns out to be hidden
    search.iteration(i, static_cast<uint64_t>(times * static_cast<double>(job.iteration(0))), 0.7);
  }
  return search.windows_too_slow();
}

TEST(ClockSearch, NoClockIsTriedBesideWindowsThatAreTooSlow) {
  EXPECT_TRUE(windows_too_slow(0.03, 0.003));
  EXPECT_FALSE(windows_too_slow(0.005, 0.003));
  EXPECT_FALSE(windows_too_slow(0.03, 0.06));  // not clearly so
}

}  // namespace
}  // namespace powerccl
