// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/tuner_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "abi/nccl_tuner.h"

// What the table decides is asked of the plugin in tests/e2e/test_tuner_table.py.
namespace powerccl::nccl {
namespace {

struct Case {
  std::string name, text;
  bool good = false;
  int number = 0;  // of rules, or of the line
};

// tuner_cases.txt, which the reader in Python is held to as well.
std::vector<Case> cases() {
  std::ifstream stream(POWERCCL_TUNER_CASES);
  std::vector<Case> found;
  bool whole_lines = true;
  const auto finish = [&] {
    if (!found.empty() && !whole_lines) found.back().text.erase(found.back().text.find_last_not_of('\n') + 1);
  };
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("===")) {
      if (!found.empty()) found.back().text += line + "\n";
      continue;
    }
    finish();
    std::istringstream words(line.substr(3));
    std::string kind;
    Case next;
    words >> kind >> next.number;
    std::getline(words >> std::ws, next.name);
    next.good = kind == "good";
    whole_lines = !next.name.starts_with("inline");
    found.push_back(next);
  }
  finish();
  return found;
}

std::unique_ptr<TunerTable> table_of(const std::string& text) {
  auto table = std::make_unique<TunerTable>();
  TunerTable::Refusal refusal;
  EXPECT_TRUE(table->parse(text, &refusal)) << refusal.line << ": " << refusal.reason << "\n" << text;
  return table;
}

TunerTable::Refusal refusal_of(const std::string& text) {
  TunerTable table;
  TunerTable::Refusal refusal;
  EXPECT_FALSE(table.parse(text, &refusal)) << text;
  EXPECT_EQ(table.count(), 0u);
  EXPECT_STRNE(refusal.reason, "");
  return refusal;
}

std::string repeated(int rules) {
  std::string text;
  for (int i = 0; i < rules; ++i) text += "allreduce,0,1024,ring,ll,-1,-1,-1\n";
  return text;
}

TEST(TunerTable, TakesAndRefusesWhatTheCasesSay) {
  const std::vector<Case> all = cases();
  ASSERT_GT(all.size(), 40u);
  for (const Case& each : all) {
    TunerTable table;
    TunerTable::Refusal refusal;
    EXPECT_EQ(table.parse(each.text, &refusal), each.good) << each.name << ": " << refusal.reason;
    EXPECT_EQ(each.good ? static_cast<int>(table.count()) : refusal.line, each.number) << each.name;
    EXPECT_EQ(refusal.reason[0] == '\0', each.good) << each.name;
  }
}

TEST(TunerTable, RulesHaveWhatTheLinesSay) {
  const auto table = table_of(
      "reducescatter,7,131072,collnet_chain,ll128,12,3,24,2,1\n"
      "broadcast,0,-1,nvls_tree,simple,-1,-1,-1\n");
  ASSERT_EQ(table->count(), 2u);
  const TunerRule& full = table->rule(0);
  EXPECT_EQ(full.collective, kTunedReduceScatter);
  EXPECT_EQ(full.min_bytes, 7u);
  EXPECT_EQ(full.max_bytes, 131072u);
  EXPECT_EQ(full.algorithm, kAlgorithmCollnetChain);
  EXPECT_EQ(full.protocol, kProtocolLl128);
  EXPECT_EQ(full.channels, 12);
  EXPECT_EQ(full.nodes, 3);
  EXPECT_EQ(full.ranks, 24);
  EXPECT_EQ(full.pipe_ops, 2);
  EXPECT_EQ(full.registered, 1);
  const TunerRule& any = table->rule(1);
  EXPECT_EQ(any.collective, kTunedBroadcast);
  EXPECT_EQ(any.max_bytes, UINT64_MAX);
  EXPECT_EQ(any.algorithm, kAlgorithmNvlsTree);
  EXPECT_EQ(any.protocol, kProtocolSimple);
  EXPECT_EQ(any.channels, 0);
  EXPECT_EQ(any.nodes, kAnyValue);
  EXPECT_EQ(any.ranks, kAnyValue);
  EXPECT_EQ(any.pipe_ops, kAnyValue);
  EXPECT_EQ(any.registered, kAnyValue);
}

TEST(TunerTable, WindowsLineEndsAreTaken) {
  EXPECT_EQ(table_of("# a\r\nallreduce,0,1024,ring,ll,-1,-1,-1\r\n\r\n")->count(), 1u);
}

TEST(TunerTable, TheReasonNamesTheFieldAndWhatStandsThere) {
  EXPECT_STREQ(refusal_of("allreduce,0,1024,rings,ll,-1,-1,-1").reason, "unknown algorithm `rings`");
  EXPECT_STREQ(refusal_of("allreduce,0,1024,ring,ll,65,-1,-1").reason,
               "channels is neither -1 nor a whole number from 0 to 64: `65`");
  EXPECT_STREQ(refusal_of("allreduce,0,1024\n").reason,
               "a rule has 10 fields, of which the last 2 may be missing, and not 3");
  EXPECT_STREQ(refusal_of("\x01\xff,0,1024,ring,ll,65,-1,-1").reason, "unknown collective `??`");
}

TEST(TunerTable, HasRoomForSoManyRulesAndNoMore) {
  EXPECT_EQ(table_of(repeated(256))->count(), 256u);
  EXPECT_EQ(table_of(repeated(256) + "# a comment is no rule\n\n")->count(), 256u);
  const TunerTable::Refusal refusal = refusal_of(repeated(257));
  EXPECT_EQ(refusal.line, 257);
  EXPECT_STREQ(refusal.reason, "more than 256 rules");
}

TEST(TunerTable, RulesAndTextHaveALargestSize) {
  const std::string rule = "allreduce,0,1024,ring,ll,-1,-1,";
  EXPECT_EQ(table_of(rule + std::string(255 - rule.size() - 2, ' ') + "-1")->count(), 1u);
  EXPECT_EQ(refusal_of("#\n" + rule + std::string(256 - rule.size() - 2, ' ') + "-1\n").line, 2);
  EXPECT_EQ(table_of("#" + std::string(4000, 'x'))->count(), 0u);
  EXPECT_EQ(table_of("#" + std::string(TunerTable::kMaxTextBytes - 1, 'x'))->count(), 0u);
  EXPECT_EQ(refusal_of("#" + std::string(TunerTable::kMaxTextBytes, 'x')).line, 0);
}

TEST(TunerTable, ATableThatIsParsedAgainForgetsTheOld) {
  TunerTable table;
  TunerTable::Refusal refusal;
  ASSERT_TRUE(table.parse(repeated(9), &refusal));
  ASSERT_TRUE(table.parse(repeated(2), &refusal));
  EXPECT_EQ(table.count(), 2u);
  EXPECT_FALSE(table.parse(repeated(2) + "x\n", &refusal));
  EXPECT_EQ(table.count(), 0u);
  EXPECT_EQ(decide(table, {1, 8}, kTunedAllReduce, 8, 1, 0).algorithm, -1);
  ASSERT_TRUE(table.parse("", &refusal));
  EXPECT_EQ(refusal.line, 0);
}

struct Costs {
  float cells[7][3];
  int channels = 0;
  Costs() {
    for (auto& row : cells) {
      for (float& cell : row) cell = 10.0f;
    }
  }
  void put(TunerDecision decision, int algorithms = 7, int protocols = 3) {
    nccl::put(decision, &cells[0][0], algorithms, protocols, &channels);
  }
  int untouched(float value = 10.0f) const {
    int count = 0;
    for (const auto& row : cells) {
      for (const float cell : row) count += cell == value ? 1 : 0;
    }
    return count;
  }
};

TEST(TunerCosts, TheChosenCellCostsNothingAndNoOtherIsTouched) {
  Costs costs;
  costs.put({kAlgorithmNvls, kProtocolSimple, 6});
  EXPECT_EQ(costs.cells[kAlgorithmNvls][kProtocolSimple], 0.0f);
  EXPECT_EQ(costs.untouched(), 20);
  EXPECT_EQ(costs.channels, 6);
}

TEST(TunerCosts, WithoutADecisionNothingIsTouched) {
  Costs costs;
  costs.put({});
  EXPECT_EQ(costs.untouched(), 21);
  EXPECT_EQ(costs.channels, 0);
}

TEST(TunerCosts, AnUnavailableCellStaysAndSoDoTheChannels) {
  for (const float unavailable : {kCostUnavailable, -3.0f, std::numeric_limits<float>::quiet_NaN()}) {
    Costs costs;
    costs.cells[kAlgorithmPat][kProtocolLl] = unavailable;
    costs.put({kAlgorithmPat, kProtocolLl, 6});
    EXPECT_FALSE(costs.cells[kAlgorithmPat][kProtocolLl] >= 0.0f);
    EXPECT_EQ(costs.untouched(), 20);
    EXPECT_EQ(costs.channels, 0);
  }
}

TEST(TunerCosts, ChannelsStayNcclsUnlessARuleHasThem) {
  Costs costs;
  costs.put({kAlgorithmRing, kProtocolLl, 0});
  EXPECT_EQ(costs.cells[kAlgorithmRing][kProtocolLl], 0.0f);
  EXPECT_EQ(costs.channels, 0);
}

TEST(TunerCosts, ASmallerTableIsNotWrittenPast) {
  Costs costs;
  costs.put({kAlgorithmPat, kProtocolLl, 2}, 6, 3);  // NCCL before PAT
  costs.put({kAlgorithmRing, kProtocolSimple, 2}, 7, 2);
  EXPECT_EQ(costs.untouched(), 21);
  costs.put({kAlgorithmRing, kProtocolLl, 2}, 7, 2);
  EXPECT_EQ((&costs.cells[0][0])[2], 0.0f) << "rows are as long as NCCL says";
  nccl::put({kAlgorithmRing, kProtocolLl, 2}, nullptr, 7, 3, nullptr);
}

}  // namespace
}  // namespace powerccl::nccl
