// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/options.h"

#include <gtest/gtest.h>

#include "bench/failure.h"

namespace powerccl::bench::mpi {
namespace {

Options parse(std::vector<std::string> words) {
  words.insert(words.begin(), "powerccl-bench-mpi");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(words.size()), argv.data());
}

std::string refusal(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitUsage);
    EXPECT_FALSE(failure.hint().empty());
    return failure.what();
  }
  return "";
}

TEST(Options, SweepAsInPowercclBench) {
  const Options options = parse({"allreduce", "-b", "8", "-e", "1K", "-f", "4", "-n", "50", "-w", "0", "-c", "0"});
  EXPECT_EQ(options.test, mpi::Test::kAllReduce);
  EXPECT_EQ(sizes_of(options, sizeof(float)), (std::vector<size_t>{8, 32, 128, 512}));
  EXPECT_EQ(iterations_of(options, 8).measured, 50);
  EXPECT_EQ(iterations_of(options, 8).warmup, 0);
  EXPECT_FALSE(options.check);
}

TEST(Options, EveryTestHasItsName) {
  for (const char* name : {"latency", "bw", "bibw", "barrier", "bcast", "reduce", "allreduce", "allgather",
                           "reduce_scatter", "alltoall", "gather", "scatter", "wait", "stencil"}) {
    EXPECT_STREQ(info_of(parse({name}).test).name, name);
  }
}

TEST(Options, IterationsAreOsusWhereNotGiven) {
  EXPECT_EQ(iterations_of(parse({"latency"}), 8192).measured, 10000);
  EXPECT_EQ(iterations_of(parse({"latency"}), 8193).measured, 1000);
  EXPECT_EQ(iterations_of(parse({"bw"}), 1).measured, 100);
  EXPECT_EQ(iterations_of(parse({"allreduce"}), 1).warmup, 100);
  EXPECT_EQ(iterations_of(parse({"allreduce"}), 1 << 20).measured, 100);
}

TEST(Options, SizesAreWholeElementsAndEachOnce) {
  EXPECT_EQ(sizes_of(parse({"allreduce", "-b", "1", "-e", "16"}), 4), (std::vector<size_t>{4, 8, 16}));
  EXPECT_EQ(sizes_of(parse({"bcast", "-b", "1", "-e", "4"}), 1), (std::vector<size_t>{1, 2, 4}));
  EXPECT_EQ(sizes_of(parse({"bcast", "-b", "0", "-e", "0"}), 1).size(), 1u);
  EXPECT_EQ(sizes_of(parse({"bcast", "-b", "10", "-e", "30", "-i", "10"}), 1), (std::vector<size_t>{10, 20, 30}));
}

TEST(Options, ScenariosHaveTheirOwn) {
  const Options wait = parse({"wait", "--wait-us", "100", "--repeat", "9", "--collective"});
  EXPECT_EQ(wait.wait.wait_us, 100);
  EXPECT_EQ(wait.wait.repeat, 9);
  EXPECT_TRUE(wait.wait.collective);
  const Options stencil = parse({"--imbalance-pct", "20", "stencil", "--sweeps", "7", "--halo", "isend"});
  EXPECT_EQ(stencil.stencil.sweeps, 7);
  EXPECT_FALSE(stencil.stencil.sendrecv);
  EXPECT_EQ(stencil.imbalance_pct, 20);
}

TEST(Options, ImbalanceGrowsWithTheRank) {
  const Options by_time = parse({"barrier", "--imbalance-us", "90"});
  EXPECT_EQ(by_time.compute_of_us(0, 4), 0);
  EXPECT_EQ(by_time.compute_of_us(1, 4), 30);
  EXPECT_EQ(by_time.compute_of_us(3, 4), 90);
  EXPECT_EQ(by_time.compute_of_us(0, 1), 0);
  const Options by_part = parse({"barrier", "--compute-us", "100", "--imbalance-pct", "20"});
  EXPECT_EQ(by_part.compute_of_us(0, 2), 100);
  EXPECT_EQ(by_part.compute_of_us(1, 2), 120);
}

TEST(Options, WrongUseIsNamed) {
  EXPECT_NE(refusal({}).find("no test"), std::string::npos);
  EXPECT_NE(refusal({"allredoce"}).find("'allredoce'"), std::string::npos);
  EXPECT_NE(refusal({"barrier", "bcast"}).find("'bcast'"), std::string::npos);
  EXPECT_NE(refusal({"barrier", "--nonsense"}).find("--nonsense"), std::string::npos);
  EXPECT_NE(refusal({"wait", "--wait-us", "long"}).find("--wait-us"), std::string::npos);
  EXPECT_NE(refusal({"wait", "--repeat", "0"}).find("--repeat"), std::string::npos);
  EXPECT_NE(refusal({"wait", "--repeat", "1.5"}).find("whole"), std::string::npos);
  EXPECT_NE(refusal({"bcast", "-b", "2K", "-e", "1K"}).find("-b"), std::string::npos);
  EXPECT_NE(refusal({"bcast", "-b"}).find("-b"), std::string::npos);
  EXPECT_NE(refusal({"bcast", "-b", "big"}).find("-b"), std::string::npos);
  EXPECT_NE(refusal({"barrier", "--imbalance-pct", "20"}).find("--compute-us"), std::string::npos);
  EXPECT_NE(refusal({"stencil", "--halo", "rma"}).find("--halo"), std::string::npos);
}

TEST(Options, HelpNeedsNoTest) {
  EXPECT_NE(parse({"--help"}).says.find("usage: mpiexec"), std::string::npos);
  EXPECT_EQ(parse({"--version"}).says, POWERCCL_BENCH_VERSION "\n");
}

}  // namespace
}  // namespace powerccl::bench::mpi
