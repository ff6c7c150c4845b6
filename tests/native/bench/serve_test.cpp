// SPDX-License-Identifier: Apache-2.0
// `powerccl-bench serve` on emulated GPUs: with the emulated NCCL, and with a double that fails on request and can be
// unloaded.
#include "emulated.h"

namespace powerccl::bench::tests {
namespace {

const std::string kDouble = POWERCCL_NCCL_DOUBLE;
const std::string kMeasure = "measure all_reduce 64K iterations=3\n";

class Served : public Emulated {
 protected:
  Ended serve(const std::string& requests, const std::string& more = "", const Environment& environment = {}) {
    std::ofstream(file("requests")) << requests;
    return start("serve -g 2 " + more, environment, file("requests")).wait();
  }
  Ended serve_double(const std::string& requests, const std::string& more = "", const Environment& environment = {}) {
    return serve(requests, more + " --nccl " + kDouble, environment);
  }
};

// The replies, and of each one field, as text; "" where it has no such field.
std::vector<std::string> replies(const Ended& ended) {
  std::vector<std::string> found;
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  return found;
}
std::string field(const std::string& line, const std::string& name) {
  const size_t at = line.find("\"" + name + "\": ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 4;
  if (line[begin] == '"') return line.substr(begin + 1, line.find('"', begin + 1) - begin - 1);
  return line.substr(begin, line.find_first_of(",}]", begin) - begin);
}
std::vector<std::string> fields(const Ended& ended, const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& line : replies(ended)) found.push_back(field(line, name));
  return found;
}
using Words = std::vector<std::string>;

TEST_F(Served, EachTrialReadsItsVariables) {
  const Ended ended = serve_double(
      "open a\nclose\nset NCCL_DOUBLE_VERSION=22901\nopen b\nclose\nset NCCL_DOUBLE_VERSION=22902\nopen c\nclose\n"
      "clear\nopen d\nclose\nquit\n",
      "", {{"NCCL_DOUBLE_VERSION", "22900"}});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(fields(ended, "type"),
            (Words{"ready", "opened", "closed", "opened", "closed", "opened", "closed", "opened", "closed"}))
      << ended.out;
  EXPECT_EQ(fields(ended, "nccl_version"), (Words{"2.29.0", "2.29.0", "", "2.29.1", "", "2.29.2", "", "2.29.0", ""}));
  EXPECT_EQ(fields(ended, "unloaded"), (Words{"", "", "true", "", "true", "", "true", "", "true"}));
}

TEST_F(Served, ALibraryThatStaysLoadedIsCopiedAgain) {
  const Ended ended = serve_double(
      "set NCCL_DOUBLE=leave a thread\nopen a\nclose\nset NCCL_DOUBLE_VERSION=22901\n"
      "open b\nclose\nclear\nopen c\nclose\n");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(fields(ended, "unloaded"), (Words{"", "", "false", "", "false", "", "true"})) << ended.out;
  EXPECT_EQ(fields(ended, "fresh"), (Words{"", "true", "", "true", "", "true", ""}));
  EXPECT_EQ(fields(ended, "nccl_version"), (Words{"2.28.0", "2.28.0", "", "2.29.1", "", "2.28.0", ""}));
}

TEST_F(Served, WhatAllRanksAreRefusedEndsTheTrialAlone) {
  for (const char* what : {"refuse all", "refuse ids"}) {
    const Ended ended = serve_double("set NCCL_DOUBLE=" + std::string(what) + "\nopen a\n" + kMeasure +
                                     "clear\nopen b\n" + kMeasure + "close\n");
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(fields(ended, "type"), (Words{"ready", "failed", "refused", "opened", "point", "closed"})) << ended.out;
    EXPECT_EQ(fields(ended, "alive")[1], "true");
    EXPECT_NE(field(replies(ended)[1], "reason").find("refused by the double"), std::string::npos) << ended.out;
  }
  const Ended ended =
      serve_double("set NCCL_DOUBLE=refuse calls\nopen a\n" + kMeasure + "close\nclear\nopen b\n" + kMeasure);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(fields(ended, "type"), (Words{"ready", "opened", "failed", "refused", "opened", "point"})) << ended.out;
  EXPECT_EQ(fields(ended, "id")[2], "a");
}

TEST_F(Served, WhatOneRankIsRefusedEndsTheServer) {
  const Ended ended = serve_double("set NCCL_DOUBLE=refuse rank 1\nopen a\n" + kMeasure, "--timeout 30");
  EXPECT_EQ(ended.code, 4) << ended.err;
  EXPECT_EQ(fields(ended, "type"), (Words{"ready", "failed"})) << ended.out;
  EXPECT_EQ(fields(ended, "alive")[1], "false");
  EXPECT_NE(field(replies(ended)[1], "reason").find("not on all ranks"), std::string::npos) << ended.out;
}

TEST_F(Served, ATrialThatHangsEndsTheServer) {
  const Ended ended = serve_double("set NCCL_DOUBLE=refuse rank 1\nopen a\n", "--timeout 1");
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_EQ(fields(ended, "type"), (Words{"ready", "failed"})) << ended.out;
}

TEST_F(Served, TrialsAreCounted) {
  const Ended ended = serve_double("open a\nclose\nopen b\nclose\nopen c\nclose\n", "--trials-per-process 2");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(fields(ended, "type"), (Words{"ready", "opened", "closed", "opened", "closed", "ended"})) << ended.out;
}

TEST_F(Served, DataAreCheckedWhereTheyAreMoved) {
  const std::string requests =
      "open a\nmeasure all_gather 64K iterations=3 check=1\nclose\nopen b\nmeasure all_gather 64K in_place=1\n";
  const Ended moved = serve(requests, "-c 1");
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(fields(moved, "wrong"), (Words{"", "", "0", "", "", "0"})) << moved.out;
  const Ended not_moved = serve(requests);
  EXPECT_EQ(not_moved.code, 0) << not_moved.err;
  EXPECT_EQ(fields(not_moved, "type"), (Words{"ready", "opened", "refused", "closed", "opened", "point"}))
      << not_moved.out;
  EXPECT_EQ(fields(not_moved, "wrong"), (Words{"", "", "", "", "", "null"}));
}

TEST_F(Served, WrongElementsAreReportedAndNoFailure) {
  const Ended ended = serve_double("open a\nmeasure all_reduce 64K iterations=3\n", "-c 1");
  EXPECT_EQ(ended.code, 0) << ended.err;
  ASSERT_EQ(fields(ended, "type"), (Words{"ready", "opened", "point"})) << ended.out;
  EXPECT_NE(fields(ended, "wrong")[2], "0");
}

}  // namespace
}  // namespace powerccl::bench::tests
