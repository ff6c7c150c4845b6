// SPDX-License-Identifier: Apache-2.0
#include "clock/policy_table.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>

#include "../record/trace_reader.h"

namespace powerccl::test {
namespace {

const std::vector<std::string> kGood = {
    "powerccl-policy-table 1",
    "platform t4x8",
    "gpu Tesla T4",
    "gpus 8",
    "clock_max_mhz 1590",
    "overhead_bytes all_reduce 1048576",
    "min_clock_mhz all_reduce 1048576 4194304 480",
    "min_clock_mhz all_reduce 4194304 inf 450",
    "overhead_bytes send_receive 524288",
    "min_clock_mhz send_receive 524288 1048576 1590",
    "min_clock_mhz send_receive 2097152 4194304 750",
    "overhead_bytes scatter never",
    "min_clock_mhz scatter 0 inf 300",
    "end 12",
};

std::string text(const std::vector<std::string>& lines) {
  std::string whole;
  for (const auto& line : lines) whole += line + "\n";
  return whole;
}

PolicyTable::Refusal refusal_of(const std::string& table_text) {
  PolicyTable table;
  PolicyTable::Refusal refusal;
  EXPECT_FALSE(table.parse(table_text, &refusal)) << table_text;
  // Nothing of a refused table stays.
  for (uint8_t pattern = 0; pattern < POWERCCL_PATTERNS; ++pattern) {
    EXPECT_EQ(table.lookup(pattern, 1u << 30), 0u);
  }
  EXPECT_STRNE(refusal.reason, "");
  return refusal;
}

std::vector<std::string> with(size_t line, const std::string& changed) {
  std::vector<std::string> lines = kGood;
  lines[line] = changed;
  return lines;
}

TEST(PolicyTable, LooksUpWhatItSays) {
  PolicyTable table;
  PolicyTable::Refusal refusal;
  ASSERT_TRUE(table.parse(text(kGood), &refusal)) << refusal.line << refusal.reason;
  EXPECT_STREQ(table.platform(), "t4x8");
  EXPECT_STREQ(table.gpu(), "Tesla T4");
  EXPECT_EQ(table.gpus(), 8u);
  EXPECT_EQ(table.clock_max_mhz(), 1590u);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 1048575), 0u);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 1048576), 480u);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 4194303), 480u);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 4194304), 450u);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, UINT64_MAX - 1), 450u);
  // At the greatest clock nothing is managed; nor between ranges, nor beyond the last one.
  EXPECT_EQ(table.lookup(POWERCCL_SEND_RECEIVE, 600000), 0u);
  EXPECT_EQ(table.lookup(POWERCCL_SEND_RECEIVE, 1500000), 0u);
  EXPECT_EQ(table.lookup(POWERCCL_SEND_RECEIVE, 2097152), 750u);
  EXPECT_EQ(table.lookup(POWERCCL_SEND_RECEIVE, 4194304), 0u);
  EXPECT_EQ(table.lookup(POWERCCL_SCATTER, 1u << 30), 0u);  // never
  EXPECT_EQ(table.lookup(POWERCCL_GATHER, 1u << 30), 0u);   // not named
  EXPECT_EQ(table.lookup(POWERCCL_PATTERN_UNKNOWN, 1u << 30), 0u);
}

std::vector<std::string> with_lines(const std::vector<std::string>& more) {
  std::vector<std::string> lines = kGood;
  lines.insert(lines.begin() + 5, more.begin(), more.end());
  lines.back() = "end " + std::to_string(lines.size() - 2);
  return lines;
}

TEST(PolicyTable, TakesFiguresForPoliciesThatNoLongerExist) {
  PolicyTable table;
  PolicyTable::Refusal refusal;
  const std::vector<std::string> all = {"switch_call_us 334", "switch_transition_us 1000", "clock_min_mhz 285"};
  ASSERT_TRUE(table.parse(text(with_lines(all)), &refusal)) << refusal.line << refusal.reason;
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 1048576), 480u);
  for (const std::string& line : all) {
    const std::string word = line.substr(0, line.find(' '));
    EXPECT_EQ(refusal_of(text(with_lines({line, line}))).line, 7) << "a second one";
    EXPECT_EQ(refusal_of(text(with_lines({word + " 0"}))).line, 6);
    EXPECT_EQ(refusal_of(text(with_lines({word + " 10000001"}))).line, 6);
    EXPECT_EQ(refusal_of(text(with_lines({word + " 3.5"}))).line, 6);
  }
  refusal_of(text(with_lines({"clock_min_mhz 1591"})));  // above clock_max_mhz
}

TEST(PolicyTable, BlankLinesAndCommentsDoNotCount) {
  std::vector<std::string> lines = kGood;
  lines.insert(lines.begin(), "# made by hand");
  lines.insert(lines.begin() + 4, "");
  lines.insert(lines.end(), "   ");
  PolicyTable table;
  PolicyTable::Refusal refusal;
  EXPECT_TRUE(table.parse(text(lines), &refusal)) << refusal.line << refusal.reason;
}

TEST(PolicyTable, EveryMissingLineIsNoticed) {
  for (size_t line = 0; line < kGood.size(); ++line) {
    std::vector<std::string> lines = kGood;
    lines.erase(lines.begin() + static_cast<long>(line));
    refusal_of(text(lines));
  }
}

TEST(PolicyTable, EveryDoubledLineIsNoticed) {
  for (size_t line = 0; line < kGood.size(); ++line) {
    std::vector<std::string> lines = kGood;
    lines.insert(lines.begin() + static_cast<long>(line), kGood[line]);
    refusal_of(text(lines));
  }
}

TEST(PolicyTable, EveryTruncationIsNoticed) {
  const std::string whole = text(kGood);
  for (size_t length = 0; length < whole.size(); ++length) refusal_of(whole.substr(0, length));
}

TEST(PolicyTable, EveryLineMadeNonsenseIsRefusedByItsNumber) {
  for (size_t line = 0; line < kGood.size(); ++line) {
    // A comment would not be nonsense, so the keyword is what changes; and a word too many.
    EXPECT_EQ(refusal_of(text(with(line, "x" + kGood[line]))).line, static_cast<int>(line) + 1);
    if (line == 1 || line == 2) continue;  // names may hold spaces
    EXPECT_EQ(refusal_of(text(with(line, kGood[line] + " more"))).line, static_cast<int>(line) + 1);
  }
}

TEST(PolicyTable, NoBytePutInBreaksTheParser) {
  // Whatever one byte becomes, the table is either refused or still one that answers.
  const std::string whole = text(kGood);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '\n', ' ', '9', '-', '#', '\xff', 'e'}) {
      std::string changed = whole;
      changed[at] = byte;
      PolicyTable table;
      PolicyTable::Refusal refusal;
      if (table.parse(changed, &refusal)) {
        EXPECT_LE(table.lookup(POWERCCL_ALL_REDUCE, 2000000), table.clock_max_mhz());
      } else {
        EXPECT_STRNE(refusal.reason, "");
      }
    }
  }
}

struct Defect {
  size_t line;
  const char* text;
  const char* reason;
};

TEST(PolicyTable, DefectsAreNamed) {
  const Defect defects[] = {
      {0, "powerccl-policy-table 2", "version 2"},
      {2, "gpu", "gpu takes"},
      {3, "gpus 0", "above 0"},
      {3, "gpus -1", "whole number"},
      {4, "clock_max_mhz 99999999999999999999", "whole number"},
      {4, "clock_max_mhz 1590MHz", "whole number"},
      {4, "clock_max_mhz 460", "above clock_max_mhz"},
      {5, "overhead_bytes allreduce 1", "unknown pattern"},
      {5, "overhead_bytes all_reduce", "whole number"},
      {6, "min_clock_mhz all_reduce 4194304 4194304 480", "TO must be above FROM"},
      {6, "min_clock_mhz all_reduce 1 4194305 480", "overlaps"},
      {6, "min_clock_mhz all_reduce 1 2 0", "above 0"},
      {7, "min_clock_mhz reduce 1 2 300", "`overhead_bytes` line"},
      {8, "overhead_bytes all_reduce 5", "second"},
      {10, "min_clock_mhz all_reduce 9999999999 inf 300", "follow each other"},
      {11, "min_clock_mhz scatter 0 inf \t300", "control character"},
      {13, "end 11", "counts 11 lines"},
      {13, "end", "whole number"},
  };
  for (const Defect& defect : defects) {
    const PolicyTable::Refusal refusal = refusal_of(text(with(defect.line, defect.text)));
    EXPECT_NE(std::string(refusal.reason).find(defect.reason), std::string::npos)
        << defect.text << ": " << refusal.reason;
    EXPECT_GT(refusal.line, 0);
  }
}

TEST(PolicyTable, LimitsHold) {
  std::vector<std::string> lines = {kGood[0], kGood[1], kGood[2], kGood[4], "overhead_bytes reduce 0"};
  for (int i = 0; i < 252; ++i) {
    std::ostringstream line;
    line << "min_clock_mhz reduce " << i << " " << i + 1 << " 300";
    lines.push_back(line.str());
  }
  PolicyTable table;
  PolicyTable::Refusal refusal;
  std::vector<std::string> full = lines;
  full.push_back("end 256");
  EXPECT_TRUE(table.parse(text(full), &refusal)) << refusal.line << refusal.reason;
  EXPECT_EQ(table.lookup(POWERCCL_REDUCE, 251), 300u);
  EXPECT_EQ(table.lookup(POWERCCL_REDUCE, 252), 0u);
  lines.push_back("min_clock_mhz reduce 252 253 300");
  lines.push_back("end 257");
  EXPECT_NE(std::string(refusal_of(text(lines)).reason).find("more than 256"), std::string::npos);
  EXPECT_NE(std::string(refusal_of(text(with(1, "platform " + std::string(152, 'x')))).reason).find("longer than 160"),
            std::string::npos);
  refusal_of(std::string(PolicyTable::kMaxFileBytes + 1, '\n'));
}

TEST(PolicyTable, LoadsAFileOrSaysWhyNot) {
  Folder folder;
  folder.write("good", text(kGood));
  PolicyTable table;
  PolicyTable::Refusal refusal;
  EXPECT_TRUE(table.load((folder / "good").c_str(), &refusal));
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 1048576), 480u);
  EXPECT_FALSE(table.load((folder / "none").c_str(), &refusal));
  EXPECT_NE(std::string(refusal.reason).find("No such file"), std::string::npos);
  EXPECT_EQ(table.lookup(POWERCCL_ALL_REDUCE, 1048576), 0u);
  EXPECT_FALSE(table.load(folder.path().c_str(), &refusal));
  EXPECT_STREQ(refusal.reason, "not a regular file");
}

TEST(PolicyTable, WaitsForNoFileThatIsNone) {
  Folder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  PolicyTable table;
  for (const std::string& path : {(folder / "fifo").string(), std::string("/dev/zero")}) {
    PolicyTable::Refusal refusal;
    EXPECT_FALSE(table.load(path.c_str(), &refusal));
    EXPECT_STREQ(refusal.reason, "not a regular file");
  }
}

TEST(PolicyTable, AWordInAMessageDoesNothingToATerminal) {
  const std::string said = refusal_of("powerccl-policy-table 1\n\x9b[31m\x7f 1\nend 1\n").reason;
  EXPECT_EQ(said.find_first_of("\x9b\x7f"), std::string::npos) << said;
}

}  // namespace
}  // namespace powerccl::test
