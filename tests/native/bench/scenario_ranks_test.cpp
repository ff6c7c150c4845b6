// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "bench/failure.h"
#include "bench/scenario.h"

namespace powerccl::bench {
namespace {

// What is said of this file for so many ranks; empty: it can run.
std::string complaint(const std::string& text, int ranks) {
  try {
    check_ranks(parse_scenario(text, "a.scn"), ranks);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitUsage);
    EXPECT_NE(failure.hint(), "");
    return failure.what();
  }
  return "";
}

TEST(Places, BlocksAndStrides) {
  const Place block = place_of({"tp", 4, 0}, 6, 8);
  EXPECT_EQ(block.rank, 2);
  EXPECT_EQ(block.size, 4);
  EXPECT_EQ(block.member(0), 4);
  EXPECT_EQ(block.member(3), 7);
  const Place both = place_of({"dp", 2, 2}, 5, 8);  // of ranks 4 to 7 the second and the fourth
  EXPECT_EQ(both.rank, 0);
  EXPECT_EQ(both.size, 2);
  EXPECT_EQ(both.member(1), 7);
  const Place strided = place_of({"dp", 0, 4}, 6, 8);
  EXPECT_EQ(strided.rank, 1);
  EXPECT_EQ(strided.size, 2);
  EXPECT_EQ(strided.member(0), 2);
  EXPECT_EQ(strided.member(1), 6);
  const Place all = place_of({"all", 0, 0}, 6, 8);
  EXPECT_EQ(all.rank, 6);
  EXPECT_EQ(all.size, 8);
}

TEST(Places, GroupsMustDivideTheRanks) {
  const std::string text = "group tp 4\ngroup dp stride 4\nall_reduce 1M in tp\nall_reduce 1M in dp\n";
  EXPECT_EQ(complaint(text, 8), "");
  EXPECT_EQ(complaint(text, 4), "");  // where dp has one rank, nothing is left to do in it
  EXPECT_NE(complaint(text, 6).find("group tp does not divide 6 ranks by 4"), std::string::npos);
  EXPECT_NE(complaint("rank 7 x2\ncompute 1\n", 4).find("no rank 7"), std::string::npos);
}

TEST(Draws, AreEvenAndTheSameEverywhere) {
  double sum = 0, least = 1, most = -1;
  for (int iteration = 0; iteration < 1000; ++iteration) {
    for (int rank = 0; rank < 8; ++rank) {
      const double each = draw(1, iteration, rank);
      sum += each;
      least = std::min(least, each);
      most = std::max(most, each);
    }
  }
  EXPECT_NEAR(sum / 8000, 0, 0.03);
  EXPECT_GE(least, -1);
  EXPECT_LT(least, -0.99);
  EXPECT_LT(most, 1);
  EXPECT_GT(most, 0.99);
  EXPECT_DOUBLE_EQ(draw(1, 0, 0), draw(1, 0, 0));
  EXPECT_NE(draw(1, 0, 0), draw(2, 0, 0));
  EXPECT_NE(draw(1, 0, 0), draw(1, 1, 0));
}

TEST(Draws, LengthenComputationAndMessagesAlike) {
  const Scenario scenario = parse_scenario("rank 1 x2\ncompute 10 vary 50%\nall_to_all 8M vary 50%\n", "a.scn");
  const auto& operations = scenario.sections[0].operations;
  const Place place = place_of(scenario.groups[0], 0, 4);
  for (int iteration = -2; iteration < 50; ++iteration) {
    for (int rank = 0; rank < 4; ++rank) {
      const double share = 1 + 0.5 * draw(scenario.seed, iteration, rank);
      EXPECT_DOUBLE_EQ(compute_ms(scenario, operations[0], iteration, rank), 10 * (rank == 1 ? 2 : 1) * share);
      const size_t piece = piece_bytes(scenario, operations[1], iteration, place, rank);
      EXPECT_NEAR(static_cast<double>(piece), 2 * 1048576 * share, 16);
      EXPECT_EQ(piece % 16, 0U);
      EXPECT_LE(piece, largest_piece_bytes(operations[1], 4));
    }
  }
}

TEST(Matching, APipelineRuns) {
  const std::string text =
      "repeat 4\nreceive 4M from previous\ncompute 1\nsend 4M to next\nend\n"
      "repeat 4\nreceive 4M from next\ncompute 2\nsend 4M to previous\nend\nall_reduce 1M\n";
  EXPECT_EQ(complaint(text, 1), "");
  EXPECT_EQ(complaint(text, 2), "");
  EXPECT_EQ(complaint(text, 8), "");
}

TEST(Matching, WhatCannotEndIsRefused) {
  const struct {
    const char *text, *says;
  } wrong[] = {
      {"compute 1\nsend 1M to next\n", "a.scn:2: rank 6 sends to rank 7, which has no such operation left"},
      {"receive 1M from next\n", "a.scn:1: rank 6 receives from rank 7, which has no such operation left"},
      {"send 1M to next\nreceive 2M from previous\n", ":1: rank 6 and rank 7 (line 2) disagree about the message"},
      {"send 1M to next\nall_reduce 1M\nreceive 1M from previous\n", ":2: rank 7 waits here for ever"},
      {"send 1M to next\nreceive 1M from next\nreceive 1M from previous\n", ":2: rank 6 receives from rank 7"},
      {"group tp 4\nsend 1M to next in tp\nreceive 1M from previous\n",
       ":3: rank 3 receives from rank 2, which never comes to that: it waits at line 2"},
      {"all_reduce 1M\nfrom 50%\nsend 1M to next\n", ":3: rank 6"},
      {"capture\nsend 1M to next\nend\n", ":2: rank 6"},
  };
  for (const auto& [text, says] : wrong) {
    EXPECT_NE(complaint(text, 8).find(says), std::string::npos) << text << "says: " << complaint(text, 8);
  }
}

TEST(Matching, MeetingHalfWayRuns) {
  // Each rank sends before it receives: the last one's receive lets all others go.
  EXPECT_EQ(complaint("send 1M to next\nreceive 1M from previous\n", 8), "");
  EXPECT_EQ(complaint("group pair 2\nsend 1M to next in pair\nreceive 1M from previous in pair\nall_reduce 1M\n", 8),
            "");
}

TEST(Suite, EveryScenarioRunsOnFourAndEightRanks) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(POWERCCL_SCENARIOS)) {
    if (entry.path().extension() != ".scn") continue;
    const Scenario scenario = read_scenario(entry.path());
    for (const int ranks : {4, 8}) EXPECT_NO_THROW(check_ranks(scenario, ranks)) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 10);
}

}  // namespace
}  // namespace powerccl::bench
