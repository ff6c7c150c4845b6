// SPDX-License-Identifier: Apache-2.0
// Emulated NCCL as programs see it: each test is a job of processes (rank_*.cpp) on an emulated t4x8 server.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "emulation.h"

namespace powerccl::test {
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
