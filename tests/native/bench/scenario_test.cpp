// SPDX-License-Identifier: Apache-2.0
#include "bench/scenario.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "refusal.h"

namespace powerccl::bench {
namespace {

Scenario parsed(const std::string& text) {
  return parse_scenario(text, "folder/a.scn");
}

using tests::Refusal;

Refusal refusal(const std::string& text) {
  return tests::refusal_of([&] { parsed(text); });
}

TEST(Scenario, TheDemosModelsCommunicateAsPublished) {
  for (const std::string name : {"microllama", "opt", "gpt2", "distilgpt2"}) {
    double bytes = 0, compute_ms = 0;
    const Scenario model = read_scenario(POWERCCL_MODELS "/" + name + ".scn");
    for (const Operation& each : model.sections[0].operations) {
      if (each.act == Act::kCompute) compute_ms += each.ms;
      if (each.act == Act::kCollective) bytes += static_cast<double>(each.bytes);
    }
    const double communication_ms = bytes * bus_factor(Pattern::kAllReduce, 8) / 3e9 * 1e3;
    const double share = communication_ms / (communication_ms + compute_ms);
    if (name == "microllama") {
      EXPECT_NEAR(communication_ms, 440, 12);
    } else {
      EXPECT_GT(share, 0.23) << name;
      EXPECT_LT(share, 0.64) << name;
    }
  }
}

TEST(Scenario, AKernelMaySayWhatOfItNoClockChanges) {
  const auto operations = parsed("compute 5 memory 75% vary 10%\ncompute 5\n").sections[0].operations;
  EXPECT_DOUBLE_EQ(operations[0].memory, 0.75);
  EXPECT_DOUBLE_EQ(operations[0].vary, 0.1);
  EXPECT_LT(operations[1].memory, 0);
  EXPECT_EQ(declared_time(2, -1), 2'000'000U);
  EXPECT_EQ(declared_time(2, 0.75) & ((uint64_t{1} << 48) - 1), 2'000'000U);
  EXPECT_EQ(declared_time(2, 0.75) >> 48, 751U);
  EXPECT_EQ(declared_time(2, 0) >> 48, 1U);
}

TEST(Scenario, HeadingsAndOperations) {
  const Scenario scenario = parsed(
      "# what it stands for\n"
      "iterations 30\nseed 7\nstreams comm prefetch\n"
      "group tp 4\ngroup dp stride 4\ngroup of 2 stride 4\nrank 3 x1.2\n\n"
      "compute 12.5 vary 30%   # forward\n"
      "wait compute on comm\n"
      "all_reduce 25M in dp on comm\n"
      "send 4M to next on prefetch\n"
      "send 4M to -2\n"
      "receive 4M from previous in tp\n"
      "sync comm\n");
  EXPECT_EQ(scenario.name, "a");
  EXPECT_EQ(scenario.iterations, 30);
  EXPECT_EQ(scenario.seed, 7U);
  EXPECT_EQ(scenario.streams, (std::vector<std::string>{"compute", "comm", "prefetch"}));
  EXPECT_EQ(scenario.groups[1].size, 4);
  EXPECT_EQ(scenario.groups[2].stride, 4);
  EXPECT_EQ(scenario.groups[3], (Group{"of", 2, 4}));
  EXPECT_EQ(scenario.factors.at(3), 1.2);
  const auto& operations = scenario.sections[0].operations;
  ASSERT_EQ(operations.size(), 7U);
  EXPECT_EQ(operations[4].towards, -2);
  EXPECT_EQ(operations[0].ms, 12.5);
  EXPECT_DOUBLE_EQ(operations[0].vary, 0.3);
  EXPECT_EQ(operations[0].line, 10);
  EXPECT_EQ(operations[1].act, Act::kWait);
  EXPECT_EQ(operations[1].awaited, 0U);
  EXPECT_EQ(operations[1].stream, 1U);
  EXPECT_EQ(operations[2].pattern, Pattern::kAllReduce);
  EXPECT_EQ(operations[2].bytes, 26214400U);
  EXPECT_EQ(operations[2].group, 2U);
  EXPECT_EQ(operations[3].towards, 1);
  EXPECT_EQ(operations[3].stream, 2U);
  EXPECT_EQ(operations[5].towards, -1);
  EXPECT_EQ(operations[6].act, Act::kSync);
}

TEST(Scenario, CollectivesMayNameAWay) {
  const Scenario scenario = parsed(
      "streams gather\ngroup tp 2\n"
      "all_gather 256M on gather by copy-engine\n"
      "all_reduce 1M by efficiency in tp\n"
      "reduce_scatter 1M by symmetric\n"
      "send_receive 1M by plain\n"
      "all_gather 1M\n"
      "capture\nall_to_all 1M by copy-engine\nend\n");
  const auto& operations = scenario.sections[0].operations;
  EXPECT_EQ(operations[0].way, Way::kCopyEngine);
  EXPECT_EQ(operations[0].stream, 1U);
  EXPECT_EQ(operations[1].way, Way::kEfficiency);
  EXPECT_EQ(operations[1].group, 1U);
  EXPECT_EQ(operations[2].way, Way::kSymmetric);
  EXPECT_EQ(operations[3].way, Way::kPlain);
  EXPECT_EQ(operations[4].way, Way::kAsGiven);
  EXPECT_EQ(operations[6].way, Way::kCopyEngine);
}

TEST(Scenario, AWrongWayIsToldWhichThereAre) {
  EXPECT_EQ(refusal("all_gather 1M by magic\n").hint, "there are plain, symmetric, copy-engine, efficiency");
  EXPECT_EQ(refusal("all_reduce 1M by copy-engine\n").hint, "it does by plain, symmetric, efficiency");
}

TEST(Scenario, RepeatsAreWrittenOut) {
  const Scenario scenario = parsed("repeat 3\n  repeat 2\n    compute 1\n  end\n  all_gather 1M\nend\n");
  EXPECT_EQ(scenario.iterations, 120);
  ASSERT_EQ(scenario.sections[0].operations.size(), 9U);
  EXPECT_EQ(scenario.sections[0].operations[8].act, Act::kCollective);
}

TEST(Scenario, SectionsFollowOneAnother) {
  const Scenario scenario = parsed("compute 1\nfrom 50%\ncompute 2\nfrom 75%\ncompute 3\n");
  EXPECT_EQ(scenario.section_at(0).operations[0].ms, 1);
  EXPECT_EQ(scenario.section_at(0.49).operations[0].ms, 1);
  EXPECT_EQ(scenario.section_at(0.5).operations[0].ms, 2);
  EXPECT_EQ(scenario.section_at(0.99).operations[0].ms, 3);
}

TEST(Scenario, CapturesAreMarked) {
  const Scenario scenario = parsed(
      "streams comm\ncapture\ncompute 1\nwait compute on comm\nall_reduce 1M on comm\nwait comm on compute\nend\n");
  EXPECT_EQ(scenario.sections[0].operations.front().act, Act::kCapture);
  EXPECT_EQ(scenario.sections[0].operations.back().act, Act::kEndCapture);
  EXPECT_TRUE(scenario.captures(scenario.sections[0]));
}

TEST(Scenario, WhatIsWrongIsNamedByLine) {
  const struct {
    const char *text, *says;
  } wrong[] = {
      {"compute 1\nfrobnicate 2\n", ":2: `frobnicate` means nothing"},
      {"compute\n", ":1: `compute` without milliseconds"},
      {"compute fast\n", ":1: compute: 'fast'"},
      {"compute 1 on comm\n", "no stream is called 'comm'"},
      {"compute 1 in all\n", "`in` has no meaning here"},
      {"compute 1 1\n", "`1` has no meaning here"},
      {"compute 1 vary 30\n", "it ends in %"},
      {"compute 1 memory 101%\n", "'101'"},
      {"compute 1 memory 5% memory 5%\n", "`memory` twice"},
      {"all_reduce 1M memory 5%\n", "`memory` has no meaning here"},
      {"compute 1 vary 95%\n", "'95'"},
      {"compute 1 vary 5% vary 5%\n", "`vary` twice"},
      {"all_reduce\n", "`all_reduce` without a size"},
      {"all_reduce 1Q\n", "'1Q'"},
      {"all_reduce 1M in tp\n", "no group is called 'tp'"},
      {"all_reduce 1M vary 5%\n", "`vary` has no meaning here"},
      {"all_gather 1M by\n", "`all_gather` without a way"},
      {"all_gather 1M by magic\n", ":1: no way is called 'magic'"},
      {"all_gather 1M by plain by plain\n", "`by` twice"},
      {"compute 1\nall_reduce 1M by copy-engine\n", ":2: NCCL does not carry `all_reduce` out by copy-engine"},
      {"broadcast 1M by symmetric\n", "does not carry `broadcast` out by symmetric"},
      {"compute 1 by plain\n", "`compute` goes no way of NCCL's"},
      {"send 1M to next by plain\n", "`send` goes no way of NCCL's"},
      {"sync compute by plain\n", "'by' is one word too many"},
      {"all_to_all 1M vary 5% by copy-engine\n", "`all_to_all` that varies is made of sends"},
      {"all_to_all 1M by plain vary 5%\n", "`all_to_all` that varies is made of sends"},
      {"all_reduce_perf 1M\n", "means nothing"},
      {"send 1M next\n", "not `next` but `to`"},
      {"send 1M to 3\n", "neither next nor previous"},
      {"receive 1M to next\n", "not `to` but `from`"},
      {"wait compute\n", "without `on`"},
      {"wait compute on compute\n", "waits for itself"},
      {"sync compute comm\n", "'comm' is one word too many"},
      {"compute 1\nseed 3\ncompute 1\n", ":2: `seed` must be above all operations"},
      {"compute 1\nfrom 50%\nstreams comm\ncompute 1\n", ":3: `streams`"},
      {"streams comm comm\ncompute 1\n", "'comm' is no name, or taken"},
      {"streams compute\ncompute 1\n", "taken"},
      {"group tp\ncompute 1\n", "without its size"},
      {"group all 4\ncompute 1\n", "taken"},
      {"send 1M to +0\n", "send: '0'"},
      {"send 1M to other\n", "neither next nor previous"},
      {"group tp 4 every 2\ncompute 1\n", "`stride`"},
      {"group tp stride 0\ncompute 1\n", "group: '0'"},
      {"rank 3 1.2\ncompute 1\n", "it begins with x"},
      {"rank 3 x1\nrank 3 x2\ncompute 1\n", ":2: rank 3 has a factor already"},
      {"repeat 2\ncompute 1\n", ":1: this block has no `end`"},
      {"compute 1\nend\n", ":2: there is no block to end"},
      {"repeat 2\nend\n", "nothing between this and line 1"},
      {"repeat 0\ncompute 1\nend\n", "repeat: '0'"},
      {"repeat 20000\ncompute 1\ncompute 1\nend\n", "more than 20000 operations"},
      {"repeat 200\nrepeat 200\ncompute 1\nend\nend\n", ":5: more than 20000 operations"},
      {"from 50%\ncompute 1\n", "nothing is above `from`"},
      {"compute 1\nfrom 50%\ncompute 1\nfrom 40%\ncompute 1\n", ":4: shares rise"},
      {"compute 1\nfrom 100%\ncompute 1\n", "between 0% and 100%"},
      {"compute 1\nfrom 50%\n", "an iteration without any operation"},
      {"", "an iteration without any operation"},
      {"repeat 2\ncompute 1\nfrom 50%\nend\n", "`from` inside a block"},
      {"capture\ncapture\ncompute 1\nend\nend\n", "a capture inside a capture"},
      {"capture\nsync compute\nend\n", "the host cannot wait inside a capture"},
      {"capture\nrepeat 2\ncompute 1 vary 5%\nend\nend\n", "cannot vary"},
      {"streams comm\ncapture\ncompute 1 on comm\nend\n", ":3: stream comm is not part of this capture"},
      {"streams comm\ncapture\nwait comm on compute\nend\n", "stream comm is not part of this capture"},
      {"streams comm\ncapture\nwait compute on comm\ncompute 1 on comm\nend\n",
       ":5: compute does not wait for stream comm"},
      {"streams a b\ncapture\nwait compute on a\nwait a on b\nwait a on compute\nend\n",
       "compute does not wait for stream b"},
  };
  for (const auto& [text, says] : wrong) {
    const Refusal refused = refusal(text);
    EXPECT_NE(refused.what.find(says), std::string::npos) << text << "says: " << refused.what;
    EXPECT_TRUE(refused.what.starts_with("folder/a.scn:")) << refused.what;
    EXPECT_NE(refused.hint, "") << text;
  }
}

std::string failure_to_read(const std::string& path) {
  return tests::refusal_of([&] { read_scenario(path); }).what;
}

TEST(Scenario, AMissingFileIsNamed) {
  EXPECT_NE(failure_to_read("/nowhere/a.scn").find("/nowhere/a.scn"), std::string::npos);
}

TEST(Scenario, WaitsForNoFileThatIsNone) {
  const std::string fifo = testing::TempDir() + "scenario-" + std::to_string(getpid()) + ".fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero")})
    EXPECT_EQ(failure_to_read(path), "cannot read " + path + ": not a regular file");
  std::remove(fifo.c_str());
}

TEST(Scenario, AWordInAMessageDoesNothingToATerminal) {
  EXPECT_EQ(refusal("\x1b[31m 5\n").what.find('\x1b'), std::string::npos);
}

// What is said of this file for so many ranks; empty: it can run.
std::string complaint(const std::string& text, int ranks) {
  return tests::refusal_of([&] { check_ranks(parse_scenario(text, "a.scn"), ranks); }).what;
}

TEST(Places, BlocksAndStrides) {
  // A group, a rank of eight, its place and size, and the others' members.
  const struct {
    Group group;
    int rank, place;
    std::vector<int> members;
  } known[] = {
      {{"tp", 4, 0}, 6, 2, {4, 5, 6, 7}},
      {{"dp", 2, 2}, 5, 0, {5, 7}},  // of ranks 4 to 7 the second and the fourth
      {{"dp", 0, 4}, 6, 1, {2, 6}},
      {{"all", 0, 0}, 6, 6, {0, 1, 2, 3, 4, 5, 6, 7}},
  };
  for (const auto& [group, rank, expected, members] : known) {
    const Place place = place_of(group, rank, 8);
    EXPECT_EQ(place.rank, expected);
    std::vector<int> found;
    for (int i = 0; i < place.size; ++i) found.push_back(place.member(i));
    EXPECT_EQ(found, members);
  }
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
