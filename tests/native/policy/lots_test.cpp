// SPDX-License-Identifier: Apache-2.0
#include "policy/lots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/basics.h"

namespace powerccl {
namespace {

constexpr double kChangeNs = 1e6;

TEST(Line, GoesThroughItsPoints) {
  Line line;
  for (int i = 0; i < 20; ++i) line.add(i, 3 + 2 * i);
  EXPECT_NEAR(line.slope(), 2, 1e-9);
  EXPECT_NEAR(line.at(100), 203, 1e-6);
  EXPECT_NEAR(line.residual(), 0, 1e-9);
}
TEST(Line, FollowsWhatChanges) {
  Line line;
  for (int i = 0; i < 200; ++i) line.add(i % 7, 3 + 2 * (i % 7));
  for (int i = 0; i < 600; ++i) line.add(i % 7, 3 + 4 * (i % 7));
  EXPECT_NEAR(line.slope(), 4, 0.1);
}
TEST(Line, SaysHowFarPointsLieFromIt) {
  Line line;
  std::mt19937_64 random{3};
  std::normal_distribution<double> normal;
  for (int i = 0; i < 400; ++i) line.add(i % 10, i % 10 + 0.5 * normal(random));
  EXPECT_NEAR(std::sqrt(line.residual()), 0.5, 0.12);
  EXPECT_GT(line.variance(), 5);
}

// A mixture of experts on four GPUs of a host, in virtual time: attention, tokens to the experts, what those compute,
// and back. Each waits for whoever got most.
class Experts {
 public:
  static constexpr int kRanks = 4;
  struct Way {
    bool tells_load = true;  // the bytes say how long an expert computes
    double differ = 0.5;     // by which lots do
    bool stretched = false;  // whoever has less computes more slowly
    bool rush = false;       // and whoever has most more quickly
  };

  Experts() {
    for (int r = 0; r < kRanks; ++r) {
      ranks_[r].lots->begin(joint.get(), joint->place(100 + static_cast<uint64_t>(r)));
    }
  }

  // Lengths of iterations, in ms, from when all have left the last all-to-all.
  std::vector<double> run(int iterations, Way way, int silent = -1) {
    std::vector<double> lengths;
    for (int i = 0; i < iterations; ++i) {
      double lots[kRanks], factor[kRanks];
      for (double& lot : lots) lot = 1 + way.differ * std::uniform_real_distribution<>(-1, 1)(random_);
      const double began_ms = now_ms_;
      double arrive_ms[kRanks];
      for (double& each : arrive_ms) each = now_ms_ + 8 * (1 + 0.005 * normal_(random_));
      const double left_ms = exchange(1, arrive_ms, lots, silent);
      for (int r = 0; r < kRanks; ++r) {
        Rank& rank = ranks_[r];
        factor[r] = 1;
        const Timetable::Run* latest = rank.table->latest();
        if (way.stretched && rank.table->settled()) {
          factor[r] = rank.lots->stretch(*rank.table, rank.table->iteration_of(latest->sequence),
                                         rank.table->position_of(latest->sequence), way.rush);
        }
        stretch[r] = factor[r];
        own_ms[r] = (2 + 10 * (way.tells_load ? lots[r] : 1 + 0.3 * normal_(random_))) * (1 + 0.005 * normal_(random_));
        arrive_ms[r] = left_ms + own_ms[r] * factor[r];
      }
      now_ms_ = exchange(2, arrive_ms, lots, -1);
      lengths.push_back(now_ms_ - began_ms);
      for (Rank& rank : ranks_) rank.learn(!way.stretched);
    }
    return lengths;
  }
  Lots& lots(int rank) { return *ranks_[rank].lots; }
  const Timetable& table(int rank) { return *ranks_[rank].table; }
  uint64_t learnt(int rank) const { return ranks_[rank].learnt; }
  void arrange(double change_ns) {
    for (Rank& rank : ranks_) rank.lots->arrange(*rank.table, change_ns);
  }

  std::unique_ptr<Joint> joint = std::make_unique<Joint>();
  double own_ms[kRanks] = {}, stretch[kRanks] = {};  // of the last iteration

 private:
  struct Rank {
    std::unique_ptr<Timetable> table = std::make_unique<Timetable>();
    std::unique_ptr<Lots> lots = std::make_unique<Lots>();
    uint64_t learnt = 0;
    void learn(bool usual) {
      if (!table->settle()) return;
      for (; table->complete(learnt); ++learnt) {
        table->learn(learnt, usual);
        if (usual) lots->learn(*table, learnt);
      }
    }
  };

  // All leave together, 5 ms after the last has come.
  double exchange(uint32_t kind, const double (&arrive_ms)[kRanks], const double (&lots)[kRanks], int silent) {
    ++exchanges_;
    for (int r = 0; r < kRanks; ++r) {
      const uint64_t sequence = ranks_[r].table->called(exchanges_, kind, 450);
      // Back go as many tokens from each.
      const double bytes = kind == 1 ? lots[r] * 6e6 : 6e6;
      if (r != silent) {
        ranks_[r].lots->received(*ranks_[r].table, exchanges_, sequence, static_cast<uint32_t>(exchanges_),
                                 static_cast<uint64_t>(bytes));
      }
    }
    const double left_ms = *std::max_element(arrive_ms, arrive_ms + kRanks) + 5;
    for (int r = 0; r < kRanks; ++r) {
      ranks_[r].table->started(exchanges_, ns(arrive_ms[r]));
      ranks_[r].table->stopped(exchanges_, ns(left_ms));
    }
    return left_ms;
  }
  static uint64_t ns(double ms) { return static_cast<uint64_t>(ms * 1e6); }

  Rank ranks_[kRanks];
  uint64_t exchanges_ = 0;
  double now_ms_ = 1000;
  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}
double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double each : values) squares += (each - middle) * (each - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

TEST(Lots, WhoeverGotLessComputesMoreSlowlyAndNobodyIsLate) {
  auto job = std::make_unique<Experts>();
  const double usual_ms = mean(job->run(200, {}));
  job->arrange(kChangeNs);
  ASSERT_TRUE(job->lots(0).any());
  const double then_ms = mean(job->run(200, {.stretched = true}));
  EXPECT_NEAR(then_ms / usual_ms, 1, 0.02);  // other lots
  double waits = 0, would_wait = 0;
  for (int i = 0; i < 100; ++i) {
    job->run(1, {.stretched = true});
    const double longest = *std::max_element(job->own_ms, job->own_ms + Experts::kRanks);
    for (int r = 0; r < Experts::kRanks; ++r) {
      const double takes = job->own_ms[r] * job->stretch[r];
      EXPECT_LT(takes, 1.02 * longest);
      would_wait += longest - job->own_ms[r];
      waits += longest - takes;
    }
  }
  EXPECT_LT(waits, 0.2 * would_wait);
}

TEST(Lots, WhoeverAllOthersWaitForComputesMoreQuicklyThanTheJob) {
  auto job = std::make_unique<Experts>();
  job->run(200, {});
  job->arrange(kChangeNs);
  double most = 1;
  for (int i = 0; i < 100; ++i) {
    job->run(1, {.stretched = true, .rush = true});
    const double* longest = std::max_element(job->own_ms, job->own_ms + Experts::kRanks);
    const double rush = 1 / job->stretch[longest - job->own_ms];
    EXPECT_GE(rush, 1);
    most = std::max(most, rush);
    for (int r = 0; r < Experts::kRanks; ++r) {
      EXPECT_LT(job->own_ms[r] * job->stretch[r], 1.02 * *longest / rush);  // nor do others make it wait then
    }
  }
  EXPECT_NEAR(most, 1.2, 0.01);  // where others have much less
}

TEST(Lots, NobodyIsSlowedForARankThatHasNotTold) {
  auto job = std::make_unique<Experts>();
  job->run(200, {});
  job->arrange(kChangeNs);
  job->run(1, {.stretched = true}, 3);
  for (int r = 0; r < Experts::kRanks; ++r) EXPECT_EQ(job->stretch[r], 1) << r;
  job->run(1, {.stretched = true});
  EXPECT_GT(*std::max_element(job->stretch, job->stretch + Experts::kRanks), 1.1);
}

TEST(Lots, AreNotFoundWhereBytesSayNothing) {
  auto job = std::make_unique<Experts>();
  job->run(300, {.tells_load = false});
  job->arrange(kChangeNs);
  EXPECT_FALSE(job->lots(0).any());
}
TEST(Lots, AreNotFoundWhereAllReceiveTheSame) {
  auto job = std::make_unique<Experts>();
  job->run(300, {.differ = 0});
  job->arrange(kChangeNs);
  EXPECT_FALSE(job->lots(0).any());
  EXPECT_FALSE(job->lots(0).choose());
}
TEST(Lots, AreLeftAloneWhereAClockCannotFollow) {
  auto job = std::make_unique<Experts>();
  job->run(200, {});
  job->arrange(20e6);
  EXPECT_FALSE(job->lots(0).any());
  job->arrange(kChangeNs);
  EXPECT_TRUE(job->lots(0).any());
}

TEST(Lots, TellHowLongAnIterationWouldHaveTakenWithoutThem) {
  auto job = std::make_unique<Experts>();
  job->run(100, {});
  Lots& lots = job->lots(0);
  const auto adjusted = [&](uint64_t iteration) {
    return static_cast<double>(lots.without_luck(job->table(0), iteration, 12345)) * 1e-6;
  };
  EXPECT_EQ(adjusted(job->learnt(0) - 1), 0.012345);  // as it was
  EXPECT_TRUE(lots.ready());
  EXPECT_TRUE(lots.choose());
  EXPECT_FALSE(lots.choose());  // said once
  std::vector<double> raw, would_be;
  for (int i = 0; i < 200; ++i) {
    raw.push_back(job->run(1, {})[0]);
    const uint64_t latest = job->learnt(0) - 1;
    would_be.push_back(adjusted(latest));
  }
  EXPECT_NEAR(mean(would_be) / mean(raw), 1, 0.01);
  EXPECT_LT(deviation(would_be), 0.25 * deviation(raw));
  EXPECT_EQ(adjusted(job->learnt(0) + 5), 0);  // not yet
  lots.clear();
  EXPECT_EQ(adjusted(job->learnt(0) - 1), 0.012345);
}

}  // namespace
}  // namespace powerccl
