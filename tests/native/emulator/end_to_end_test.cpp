// SPDX-License-Identifier: Apache-2.0
// Processes on the emulated libcuda and libnvidia-ml with a server of their own (job_*.cpp has what they do).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "../emulator_nccl/emulation.h"

namespace powerccl::test {
namespace {

void wait_for_output(const Emulation& emulation, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (emulation.output_of(0).find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

struct Job {
  const char* scenario;
  int processes = 1;
  Emulation::Environment environment = {};
};
void PrintTo(const Job& job, std::ostream* out) {
  *out << job.scenario;
}

class Scenario : public ::testing::TestWithParam<Job> {};

TEST_P(Scenario, FindsWhatItExpects) {
  Emulation emulation;
  const auto ended = emulation.run(GetParam().scenario, GetParam().processes, GetParam().environment);
  EXPECT_EQ(statuses(ended), std::vector<int>(ended.size(), 0)) << errors(ended);
}

const auto name_of_job = [](const auto& made) { return std::string(made.param.scenario); };
INSTANTIATE_TEST_SUITE_P(Cuda, Scenario,
                         ::testing::Values(Job{"events"}, Job{"ordering"}, Job{"memory"}, Job{"write_value"},
                                           Job{"host_functions"}, Job{"graphs"}, Job{"modules"}, Job{"entry_points"},
                                           Job{"contexts"}, Job{"threads"}, Job{"processes", 8}, Job{"fork_child"},
                                           Job{"visible", 1, {{"CUDA_VISIBLE_DEVICES", "2,1,nonsense,3"}}},
                                           Job{"unmoved", 1, {{"POWERCCL_EMULATOR_MOVE_DATA", "0"}}}),
                         name_of_job);
INSTANTIATE_TEST_SUITE_P(Nvml, Scenario,
                         ::testing::Values(Job{"nvml"}, Job{"energy"}, Job{"clock_calls"}, Job{"nvml_after_fork"},
                                           Job{"failing_calls",
                                               1,
                                               {{"POWERCCL_EMULATOR_NVML_FAIL",
                                                 "set_locked_clocks:after=3:code=15,power:after=0:code=3"}}},
                                           Job{"forbidden", 1, {{"POWERCCL_EMULATOR_MAY_SET_CLOCKS", "0"}}}),
                         name_of_job);

TEST(Nvml, LockedClocksOutliveTheirProcess) {
  for (const auto& [scenario, status] : {std::pair{"locks_and_leaves", 0}, {"locks_and_dies", 128 + 9}}) {
    Emulation emulation;
    EXPECT_EQ(statuses(emulation.run(scenario, 1)), std::vector<int>{status});
    const auto finder = emulation.run("finds_lock", 1);
    EXPECT_EQ(statuses(finder), std::vector<int>{0}) << scenario << errors(finder);
  }
}

TEST(Faults, AKilledProcessLeavesNothingBehind) {
  Emulation emulation;
  EXPECT_EQ(statuses(emulation.run("dies", 1)), std::vector<int>{128 + 9});
  const auto survivor = emulation.run("survives", 1);
  EXPECT_EQ(statuses(survivor), std::vector<int>{0}) << errors(survivor);
}

TEST(Faults, AKilledProcessDoesNotDisturbOthers) {
  Emulation emulation;
  emulation.start("dies", 1);
  wait_for_output(emulation, "running");
  emulation.start("survives", 1);
  const auto ended = emulation.finish();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].status, 128 + 9);
  EXPECT_EQ(ended[1].status, 0) << errors(ended);
}

TEST(Faults, AKilledServerEndsEveryCallWithOneLine) {
  Emulation emulation;
  emulation.start("outlives_server", 1);
  wait_for_output(emulation, "running");
  emulation.kill_server();
  const auto ended = emulation.finish();
  EXPECT_EQ(statuses(ended), std::vector<int>{0}) << errors(ended);
  const std::string text = ended[0].errors;
  const std::string line = "libcuda: the emulated GPU server is gone";
  const size_t first = text.find(line);
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(line, first + 1), std::string::npos) << text;
}

TEST(Faults, WithoutAServerThereIsNoDeviceAndAHint) {
  for (const std::string socket : {"", "/nowhere/socket"}) {
    Emulation emulation;
    const auto ended = emulation.run("no_server", 1, {{"POWERCCL_EMULATOR_SOCKET", socket}});
    EXPECT_EQ(statuses(ended), std::vector<int>{0}) << errors(ended);
    EXPECT_NE(errors(ended).find("hint:"), std::string::npos);
  }
}

}  // namespace
}  // namespace powerccl::test
