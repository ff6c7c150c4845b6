// SPDX-License-Identifier: Apache-2.0
// NCCL's variables and tuner plugins on emulated NCCL: found, asked, obeyed; failures as NCCL's; hangs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include "emulation.h"

namespace powerccl::test {
namespace {

constexpr const char* kPlatforms = POWERCCL_TEST_PLATFORMS;
const std::string k64MiB = "67108864";

class Tuned : public ::testing::Test {
 protected:
  std::vector<Finished> run(const std::string& scenario, int ranks, Emulation::Environment environment) {
    environment.try_emplace("POWERCCL_EMULATOR_MOVE_DATA", "0");
    environment.try_emplace("POWERCCL_EMULATOR_SEED", "1");
    auto finished = emulation.run(scenario, ranks, environment);
    EXPECT_EQ(statuses(finished), std::vector<int>(static_cast<size_t>(ranks), 0)) << errors(finished);
    return finished;
  }
  // us of an all-reduce over 4 GPUs
  double timing(const std::string& bytes, Emulation::Environment environment) {
    environment["BYTES"] = bytes;
    const std::string output = run("tuned_timing", 4, environment)[0].output;
    const size_t at = output.find("us=");
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? 0 : atof(output.c_str() + at + 3);
  }
  static std::vector<std::string> lines(const std::string& text, const std::string& pattern) {
    std::vector<std::string> kept;
    std::istringstream stream(text);
    const std::regex wanted(pattern);
    for (std::string line; std::getline(stream, line);)
      if (std::regex_search(line, wanted)) kept.push_back(line);
    return kept;
  }
  Emulation emulation{std::string(kPlatforms) + "/h200x4-sockets.conf"};
};

TEST_F(Tuned, VariablesReachTheModel) {
  const double usual = timing(k64MiB, {});
  EXPECT_NEAR(usual, 64.0 * (1 << 20) * 1.5 / 3.7e3, 0.03 * usual);
  const double sockets =
      timing(k64MiB, {{"NCCL_SOCKET_NTHREADS", "2"}, {"NCCL_NSOCKS_PERTHREAD", "8"}, {"NCCL_BUFFSIZE", "8388608"}});
  EXPECT_NEAR(usual / sockets, 2.92, 0.35);
  EXPECT_GT(usual / timing(k64MiB, {{"NCCL_MIN_CTAS", "8"}}), 1.5);
  EXPECT_GT(usual / timing(k64MiB, {{"NCCL_MIN_NCHANNELS", "8"}}), 1.5);
  EXPECT_GT(usual / timing(k64MiB, {{"CONFIG_MIN_CTAS", "8"}}), 1.5);
  EXPECT_LT(usual / timing(k64MiB, {{"CONFIG_MIN_CTAS", "8"}, {"NCCL_MIN_CTAS", "1"}}), 1.2);  // variables first
  EXPECT_LT(usual / timing(k64MiB, {{"NCCL_MAX_CTAS", "1"}}), 0.85);
  EXPECT_LT(usual / timing(k64MiB, {{"NCCL_MAX_NCHANNELS", "1"}}), 0.85);
  EXPECT_LT(usual / timing(k64MiB, {{"NCCL_PROTO", "LL"}}), 0.6);
  EXPECT_LT(usual / timing(k64MiB, {{"NCCL_PROTO", "^Simple"}}), 0.98);  // LL128, then, and a little slower
  EXPECT_LT(usual / timing(k64MiB, {{"NCCL_ALGO", "allreduce:tree"}}), 0.9);
  EXPECT_NEAR(usual / timing(k64MiB, {{"NCCL_ALGO", "^tree"}}), 1, 0.12);
}

TEST_F(Tuned, WithoutALegalMethodTheCallFails) {
  const auto runs_with = [&](const Emulation::Environment& environment) { run("nothing_available", 2, environment); };
  runs_with({{"NCCL_ALGO", "NVLS"}});
  runs_with({{"NCCL_ALGO", "Tree"}, {"ALL_REDUCE_WORKS", "1"}});
  runs_with({{"NCCL_ALGO", "broadcast:tree"}, {"ALL_REDUCE_WORKS", "1"}});
  runs_with({{"NCCL_ALGO", "PAT"}, {"NCCL_PROTO", "LL"}});
}

TEST_F(Tuned, AListThatIsNotUnderstoodFailsTheCommunicator) {
  for (const auto& [variable, value] : {std::pair{"NCCL_ALGO", "Rings"},
                                        {"NCCL_PROTO", "LL,LL64"},
                                        {"NCCL_ALGO", "all:Ring"},
                                        {"NCCL_ALGO", "Ring;Tree"}}) {
    const auto ranks = run("init_fails", 2, {{variable, value}, {"EXPECTED", "5"}});
    EXPECT_NE(ranks[0].output.find(value), std::string::npos) << ranks[0].output;
  }
}

TEST_F(Tuned, HangsWhereToldTo) {
  const std::string hangs = "NCCL_PROTO=LL,LL128,NCCL_MAX_CTAS=1;NCCL_NTHREADS=64";
  run("stuck", 2, {{"POWERCCL_EMULATOR_HANGS", hangs}, {"NCCL_PROTO", "LL,LL128"}, {"NCCL_MAX_CTAS", "1"}});
  run("stuck", 2, {{"POWERCCL_EMULATOR_HANGS", hangs}, {"NCCL_NTHREADS", "64"}});
  EXPECT_GT(timing("4096", {{"POWERCCL_EMULATOR_HANGS", hangs}, {"NCCL_PROTO", "LL"}, {"NCCL_MAX_CTAS", "1"}}), 0);
  EXPECT_GT(timing("4096", {{"POWERCCL_EMULATOR_HANGS", hangs}, {"NCCL_PROTO", "LL,LL128"}}), 0);
}

TEST_F(Tuned, ATunerIsAskedForEveryCollective) {
  const auto ranks = run("every_function", 4, {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}});
  const std::string costs = "costs=[+]-[+][+]-[+]---------------$";  // tree and ring, LL128 not over these sockets
  const std::string ring = "costs=---[+]-[+]---------------$";
  const std::vector<std::string> expected = {
      "^init v5 comm=1 ranks=4 nodes=1 domains=1,4,4$",
      "^ask 1 function=4 bytes=4194304 pipelined=1 registered=0 channels=0 " + costs,
      "^ask 1 function=0 bytes=4194304 pipelined=1 registered=0 channels=0 " + ring,
      "^ask 1 function=1 bytes=4194304 pipelined=1 registered=0 channels=0 " + ring,
      "^ask 1 function=2 bytes=16777216 pipelined=1 registered=0 channels=0 " + ring,
      "^ask 1 function=3 bytes=16777216 pipelined=1 registered=0 channels=0 " + ring,
      // 1000 and 2000 elements are decided together, 100000 and another operator alone; 4 tasks on 2 channels
      "^ask 1 function=4 bytes=12000 pipelined=2 registered=0 channels=0 " + costs,
      "^ask 1 function=4 bytes=400000 pipelined=2 registered=0 channels=0 " + costs,
      "^ask 1 function=4 bytes=4000 pipelined=2 registered=0 channels=0 " + costs, "^finalize 1$"};
  for (const Finished& rank : ranks) {
    const auto got = lines(rank.output, ".");
    ASSERT_EQ(got.size(), expected.size()) << rank.output;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(std::regex_search(got[i], std::regex(expected[i]))) << got[i] << "\nis not " << expected[i];
  }
}

TEST_F(Tuned, ATunerIsObeyed) {
  const Emulation::Environment plugin = {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}};
  const auto with = [&](const std::string& choice, Emulation::Environment more = {}) {
    more.insert(plugin.begin(), plugin.end());
    more["TUNER_CHOICE"] = choice;
    return timing(k64MiB, more);
  };
  const double usual = timing(k64MiB, {});
  EXPECT_NEAR(with("-1,-1,-1"), usual, 0.06 * usual);
  EXPECT_NEAR(with("1,2,-1"), usual, 0.06 * usual);
  EXPECT_NEAR(with("1,0,-1") / usual, 2, 0.05);
  EXPECT_NEAR(with("0,2,-1") / usual, 1.25, 0.05);
  EXPECT_NEAR(with("4,2,-1"), usual, 0.06 * usual);  // NVLS is not there to be chosen
  EXPECT_GT(with("-1,-1,1") / usual, 1.3);
  EXPECT_NEAR(with("-1,-1,64"), usual, 0.06 * usual);  // no more than the communicator was built with
  EXPECT_LT(with("-1,-1,8", {{"NCCL_MIN_CTAS", "8"}}) / usual, 0.7);
  // What the variables exclude the table does not offer.
  EXPECT_GT(with("1,2,-1", {{"NCCL_PROTO", "LL"}}) / usual, 1.8);
}

TEST_F(Tuned, TheConstantsAreTheTuners) {
  Emulation::Environment environment = {
      {"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}, {"POWERCCL_EMULATOR_TUNER_ABI", "6"}, {"BYTES", "4096"}};
  EXPECT_FALSE(lines(run("tuned_timing", 2, environment)[0].output, "method=1,0,1 ").empty());  // Ring, LL
  environment["TUNER_LATENCIES"] = "1";
  EXPECT_FALSE(lines(run("tuned_timing", 2, environment)[0].output, "method=1,2,1 ").empty());  // Ring, Simple
}

TEST_F(Tuned, AbiVersionsFollowTheLibrarys) {
  const auto first_line = [&](Emulation::Environment environment) {
    environment.try_emplace("NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER);
    const std::string output = run("every_function", 2, environment)[0].output;
    return output.substr(0, output.find(' ', 5));
  };
  EXPECT_EQ(first_line({}), "init v5");
  EXPECT_EQ(first_line({{"POWERCCL_EMULATOR_NCCL_VERSION", "2.27.7"}}), "init v4");
  EXPECT_EQ(first_line({{"POWERCCL_EMULATOR_NCCL_VERSION", "2.29.2"}}), "init v5");
  EXPECT_EQ(first_line({{"POWERCCL_EMULATOR_NCCL_VERSION", "2.30.3"}}), "init v6");
  EXPECT_EQ(first_line({{"POWERCCL_EMULATOR_NCCL_VERSION", "2.23.4"}}), "");
  EXPECT_EQ(first_line({{"POWERCCL_EMULATOR_TUNER_ABI", "4"}}), "init v4");
  EXPECT_EQ(first_line({{"NCCL_TUNER_PLUGIN", "none"}}), "");
  EXPECT_EQ(first_line({{"NCCL_TUNER_PLUGIN", "choosing"},
                        {"LD_LIBRARY_PATH", POWERCCL_TEST_LIBRARIES ":" POWERCCL_TEST_TUNER_FOLDER}}),
            "init v5");
#ifndef __SANITIZE_ADDRESS__  // ASan wants to be preloaded before all else
  EXPECT_EQ(first_line({{"NCCL_TUNER_PLUGIN", "STATIC_PLUGIN"}, {"LD_PRELOAD", POWERCCL_TEST_TUNER}}), "init v5");
#endif
  EXPECT_EQ(first_line({{"NCCL_TUNER_PLUGIN", "/nowhere/libtuner.so"}}), "");
}

TEST_F(Tuned, V6IsAskedForChunks) {
  const auto ranks =
      run("tuned_timing", 2,
          {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}, {"POWERCCL_EMULATOR_TUNER_ABI", "6"}, {"BYTES", k64MiB}});
  EXPECT_EQ(lines(ranks[0].output, "^chunk function=4 bytes=67108864 method=1,2,2 chunk=524288$").size(), 6u)
      << ranks[0].output;
}

TEST_F(Tuned, ATunersErrorIsTheCalls) {
  run("tuner_fails", 2, {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}, {"TUNER_FAIL", "info"}});
  run("init_fails", 2, {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}, {"TUNER_FAIL", "init"}, {"EXPECTED", "2"}});
}

TEST_F(Tuned, TunersThatDisagreeHangAndTheServerSaysWhy) {
  run("stuck", 2, {{"NCCL_TUNER_PLUGIN", POWERCCL_TEST_TUNER}, {"RANK1_CHOICE", "0,2,-1"}});
  const std::string log = emulation.server_log();
  EXPECT_NE(log.find("ranks disagree: operation 0"), std::string::npos) << log;
  EXPECT_NE(log.find("TREE/SIMPLE"), std::string::npos) << log;
}

TEST_F(Tuned, ACopyOfTheLibraryReadsVariablesAnew) {
  const std::string folder = emulation.folder() + "/copies";
  std::filesystem::create_directory(folder);
  for (const char* name : {"/1.so", "/2.so", "/3.so"})
    std::filesystem::copy_file(POWERCCL_TEST_LIBRARIES "/libnccl.so.2", folder + name);
  const auto ranks = run("copies", 4, {{"COPIES", folder}});
  std::istringstream output(ranks[0].output);
  double us[6] = {};
  for (double& value : us) output >> value;
  EXPECT_NEAR(us[0] / us[2], 2.7, 0.45);
  for (const int i : {0, 2, 4}) EXPECT_NEAR(us[i + 1] / us[i], 1, 0.15);
  EXPECT_NEAR(us[4] / us[0], 1, 0.15);
}

}  // namespace

// Emulated NCCL as programs see it: each test is a job of processes (rank_*.cpp) on an emulated t4x8 server.
namespace {

struct Job {
  const char* scenario;
  int ranks;
};
void PrintTo(const Job& job, std::ostream* out) {
  *out << job.scenario;
}

class Scenario : public ::testing::TestWithParam<Job> {};

TEST_P(Scenario, EveryRankFindsWhatItExpects) {
  Emulation emulation;
  const auto ranks = emulation.run(GetParam().scenario, GetParam().ranks);
  EXPECT_EQ(statuses(ranks), std::vector<int>(ranks.size(), 0)) << errors(ranks);
}

INSTANTIATE_TEST_SUITE_P(Nccl, Scenario,
                         ::testing::Values(Job{"data", 4}, Job{"data", 8}, Job{"data", 2}, Job{"pre_mul_sum", 3},
                                           Job{"queries", 2}, Job{"split", 4}, Job{"shrink", 4}, Job{"scalable", 2},
                                           Job{"non_blocking", 3}, Job{"abort_initialisation", 1}, Job{"bad_config", 1},
                                           Job{"same_gpu", 2}, Job{"abort_waiting", 2}, Job{"revoke", 2},
                                           Job{"leave_without_destroying", 2}, Job{"groups", 3}, Job{"arguments", 2},
                                           Job{"streams", 2}, Job{"many_communicators", 4}, Job{"init_all", 1},
                                           Job{"threads", 1}, Job{"graphs", 3}, Job{"alone", 1}),
                         [](const auto& made) {
                           return std::string(made.param.scenario) + "_" + std::to_string(made.param.ranks);
                         });

TEST(Nccl, MoveDataOffLeavesBuffersAlone) {
  Emulation emulation;
  const auto ranks = emulation.run("unmoved", 2, {{"POWERCCL_EMULATOR_MOVE_DATA", "0"}});
  EXPECT_EQ(statuses(ranks), std::vector<int>(2, 0)) << errors(ranks);
}

TEST(Nccl, ARankKilledInsideACollectiveIsARemoteErrorToTheOthers) {
  Emulation emulation;
  const auto ranks = emulation.run("killed", 3);
  EXPECT_EQ(statuses(ranks), (std::vector<int>{0, 128 + 9, 0})) << errors(ranks);
  EXPECT_NE(ranks[0].errors.find("rank 1's process ended"), std::string::npos) << ranks[0].errors;
}

TEST(Nccl, RanksThatDisagreeAreToldInsteadOfHanging) {
  Emulation emulation;
  const auto ranks = emulation.run("mismatch", 2);
  EXPECT_EQ(statuses(ranks), std::vector<int>(2, 0)) << errors(ranks);
  EXPECT_NE(ranks[0].errors.find("count 1000"), std::string::npos) << ranks[0].errors;
  EXPECT_NE(ranks[0].errors.find("count 1001"), std::string::npos) << ranks[0].errors;
}

TEST(Nccl, TheServersDeathIsAnErrorAndNoHang) {
  Emulation emulation;
  emulation.start("server_death", 2);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 5000 && emulation.output_of(rank).empty(); ++i) usleep(2000);
    ASSERT_EQ(emulation.output_of(rank), "up\n");
  }
  emulation.kill_server();
  const auto ranks = emulation.finish();
  EXPECT_EQ(statuses(ranks), std::vector<int>(2, 0)) << errors(ranks);
}

// 64 MiB over eight ranks: 2 * 7/8 of the bytes at the platform's 3.06 GB/s.
TEST(Nccl, AnAllReduceTakesWhatThePlatformSays) {
  Emulation emulation;
  const auto ranks = emulation.run("timing", 8, {{"POWERCCL_EMULATOR_MOVE_DATA", "0"}});
  EXPECT_EQ(statuses(ranks), std::vector<int>(8, 0)) << errors(ranks);
  const double expected_us = 64.0 * (1 << 20) * 2 * 7 / 8 / 3.06e3;
  EXPECT_NEAR(atof(ranks[0].output.c_str()), expected_us, 0.03 * expected_us);
}

TEST(Nccl, DebugInfoSaysThatItIsEmulated) {
  Emulation emulation;
  const auto quiet = emulation.run("alone", 1);
  EXPECT_EQ(quiet[0].errors, "");
  const auto ranks = emulation.run("threads", 1, {{"NCCL_DEBUG", "INFO"}});
  EXPECT_NE(ranks[0].errors.find("PowerCCL's emulated NCCL"), std::string::npos) << ranks[0].errors;
}

}  // namespace

}  // namespace powerccl::test
