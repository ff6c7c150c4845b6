// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "bench/values.h"
#include "refusal.h"

namespace powerccl::bench {
namespace {

Options parse(const std::string& line) {
  return tests::with_words(line, parse_options);
}

std::string refusal(const std::string& line) {
  return tests::refusal_of([&] { parse(line); }).what;
}

TEST(Size, TakesSuffixesOf1024) {
  EXPECT_EQ(parse_size("8", "-b"), 8U);
  EXPECT_EQ(parse_size("0", "-b"), 0U);
  EXPECT_EQ(parse_size("128K", "-b"), 131072U);
  EXPECT_EQ(parse_size("64m", "-b"), 67108864U);
  EXPECT_EQ(parse_size("62.5M", "-b"), 65536000U);
  EXPECT_EQ(parse_size("581MiB", "-b"), 609222656U);
  EXPECT_EQ(parse_size("2G", "-b"), 2147483648U);
}

TEST(Size, RefusesWhatIsNone) {
  for (const char* text : {"", "K", "12Q", "-1", "1KK", "nan", "1e30"}) {
    EXPECT_THROW(parse_size(text, "-b"), Failure) << text;
  }
}

TEST(Clocks, ListsAndRanges) {
  EXPECT_EQ(parse_clocks("1590,900"), (std::vector<int>{1590, 900}));
  EXPECT_EQ(parse_clocks("default"), (std::vector<int>{kClockAsFound}));
  EXPECT_EQ(parse_clocks("345:300:15"), (std::vector<int>{345, 330, 315, 300}));
  EXPECT_EQ(parse_clocks("300:340:15"), (std::vector<int>{300, 315, 330}));
  EXPECT_THROW(parse_clocks("fast"), Failure);
  EXPECT_THROW(parse_clocks("300:400"), Failure);
}

TEST(Options, NcclTestsLettersMeanTheSame) {
  const Options options = parse("all_reduce_perf -b 8 -e 128M -f 4 -n 7 -w 3 -c 0 -d half -o max -r 2 -g 4 -G 5 -T 9");
  EXPECT_EQ(options.patterns, (std::vector<Pattern>{Pattern::kAllReduce}));
  EXPECT_EQ(options.min_bytes, 8U);
  EXPECT_EQ(options.max_bytes, 134217728U);
  EXPECT_EQ(options.factor, 4);
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup, 3);
  EXPECT_EQ(options.check, 0);
  EXPECT_EQ(options.types, (std::vector<Type>{Type::kFloat16}));
  EXPECT_EQ(options.ops, (std::vector<Op>{Op::kMax}));
  EXPECT_EQ(options.root, 2);
  EXPECT_EQ(options.gpus, 4);
  EXPECT_EQ(options.graph_launches, 5);
  EXPECT_EQ(options.timeout_s, 9);
}

TEST(Options, MayStandAnywhereAndTheLastCounts) {
  const Options options = parse("-n 3 all_reduce --json a -n9 broadcast --json=c");
  EXPECT_EQ(options.iterations, 9);
  EXPECT_EQ(options.patterns.size(), 2U);
  EXPECT_EQ(options.json, "c");
}

TEST(Options, HelpAndVersionAreSaidInstead) {
  EXPECT_NE(parse("scenario --help").says.find("--products TxWxH "), std::string::npos);
  EXPECT_EQ(parse("--version").says, std::string(kVersion) + "\n");
}

TEST(Options, ListsHaveAllOrEachOnce) {
  EXPECT_EQ(parse("all all_reduce").patterns.size(), kPatterns.size());
  EXPECT_EQ(parse("sendrecv,alltoall").patterns, (std::vector<Pattern>{Pattern::kSendReceive, Pattern::kAllToAll}));
  const Options options = parse("all_reduce -d all -o all -r all");
  EXPECT_EQ(options.types.size(), kTypes.size());
  EXPECT_EQ(options.ops.size(), kOperators.size());
  EXPECT_EQ(options.root, -1);
  EXPECT_EQ(parse("all_reduce").ways, (std::vector<Way>{Way::kAsGiven}));
  EXPECT_EQ(parse("all_gather --way all").ways,
            (std::vector<Way>{Way::kPlain, Way::kSymmetric, Way::kCopyEngine, Way::kEfficiency}));
  EXPECT_EQ(parse("all_reduce,all_gather --way copy-engine,plain").ways,
            (std::vector<Way>{Way::kCopyEngine, Way::kPlain}));
  EXPECT_EQ(parse("all_reduce").besides, (std::vector<Beside>{Beside::kNothing}));
  EXPECT_EQ(parse("all_reduce --beside memory,matmul,memory").besides,
            (std::vector<Beside>{Beside::kNothing, Beside::kMemory, Beside::kMatmul}));
  EXPECT_EQ(parse("all_reduce --beside all").besides,
            (std::vector<Beside>{Beside::kNothing, Beside::kMatmul, Beside::kMemory, Beside::kBoth}));
}

TEST(Options, OfEachMode) {
  const Options serve = parse("serve -g 4 --trials-per-process 5");
  EXPECT_EQ(serve.mode, Mode::kServe);
  EXPECT_EQ(serve.trials_per_process, 5);
  EXPECT_EQ(serve.check, 0);
  EXPECT_EQ(parse("-c 2 serve").check, 2);
  EXPECT_EQ(parse("all_reduce").check, 1);
  const Options scenario = parse("scenario a.scn --compute matmul --seconds 2.5");
  EXPECT_EQ(scenario.compute, Beside::kMatmul);
  EXPECT_EQ(scenario.seconds, 2.5);
  EXPECT_EQ(scenario.scenario_warmup, 2);
  EXPECT_EQ(parse("scenario a.scn").compute, Beside::kNothing);
  EXPECT_EQ(parse("scenario a.scn --compute fma").compute, Beside::kNothing);
  const Products usual = parse("all_reduce").products;
  EXPECT_EQ(std::vector({usual.tokens, usual.width, usual.hidden}), std::vector(3, 4096));
  const Products asked = parse("all_reduce --products 2048x4096x14336").products;
  EXPECT_EQ(std::vector({asked.tokens, asked.width, asked.hidden}), std::vector({2048, 4096, 14336}));
}

// What is wrong, and what is said of it.
constexpr std::pair<const char*, const char*> kWrong[] = {
    {"", "pattern"},
    {"all_redux", "all_redux"},
    {"all_reduce -n many", "-n"},
    {"all_reduce -n 1.5", "whole"},
    {"all_reduce -n", "-n"},
    {"all_reduce -b 2M -e 1M", "-e"},
    {"all_reduce --frobnicate", "--frobnicate"},
    {"all_reduce -q", "-q"},
    {"all_reduce --resume", "--json-lines"},
    {"all_reduce -d float8", "float8"},
    {"all_reduce -R 1", "-R 1 is not offered"},
    {"all_reduce --way fast", "fast"},
    {"all_reduce --way copy-engine", "copy-engine"},
    {"all_reduce --way plain -R 2", "-R"},
    {"all_reduce --beside games", "games"},
    {"all_reduce --beside matmul -G5", "--beside"},
    {"all_reduce --beside matmul --blocking", "--beside"},
    {"all_reduce --beside matmul --in-place", "--beside"},
    {"all_reduce --products 2048", "--products"},
    {"all_reduce --products 2048x4096x0", "--products"},
    {"all_reduce --products axbxc", "--products"},
    {"all_reduce --products 2048x4096x14336x1", "--products"},
    {"all_reduce --products=", "--products"},
    {"all_reduce --seconds 2", "--seconds is for scenario"},
    {"all_reduce --compute memory", "--compute is for scenario"},
    {"scenario a.scn --clocks 900,600", "--clock"},
    {"scenario", "which file"},
    {"scenario a.scn all_reduce", "scenario takes no pattern"},
    {"scenario a.scn --compute nothing", "'nothing'"},
    {"scenario a.scn --seconds 0", "--seconds"},
    {"scenario a.scn --seconds 2 -w 0", "warm-up"},
    {"scenario a.scn --seconds 2 --iterations 3", "--iterations"},
    {"serve all_reduce", "serve"},
    {"serve --threads", "--threads"},
    {"serve --json x", "serve"},
    {"serve --json-lines x", "serve"},
    {"serve -G 1", "--graph"},
    {"serve --clocks 900", "clocks"},
    {"serve --way plain", "--way"},
    {"serve --beside matmul", "--beside"},
    {"serve --trials-per-process 0", "--trials-per-process"},
};

TEST(Options, SayWhatIsWrong) {
  for (const auto& [line, says] : kWrong) {
    const std::string said = refusal(line);
    EXPECT_NE(said.find(says), std::string::npos) << line << ": " << said;
    EXPECT_NE(said, "") << line;
  }
}

TEST(WriteWhole, WhatIsNoRegularFileIsWrittenAsItIs) {
  char folder[] = "/tmp/powerccl-values-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string pipe = std::string(folder) + "/pipe", file = std::string(folder) + "/file";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_EQ(write_whole(pipe, "text"), "");
  struct stat about{};
  ASSERT_EQ(stat(pipe.c_str(), &about), 0);
  EXPECT_TRUE(S_ISFIFO(about.st_mode));
  EXPECT_EQ(write_whole(file, "text"), "");
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
  close(reader);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace powerccl::bench
