// SPDX-License-Identifier: Apache-2.0
// Processes on the emulated libcuda and libnvidia-ml with a server of their own (job_*.cpp has what they do).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "../emulator_nccl/emulation.h"

namespace powerccl::test {
namespace {

void passes(const std::string& scenario, int processes = 1, const Emulation::Environment& environment = {}) {
  Emulation emulation;
  const auto ended = emulation.run(scenario, processes, environment);
  EXPECT_EQ(statuses(ended), std::vector<int>(static_cast<size_t>(processes), 0)) << errors(ended);
}

void wait_for_output(const Emulation& emulation, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (emulation.output_of(0).find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST(Cuda, EventsTellTheModelsTime) {
  passes("events");
}
TEST(Cuda, StreamsKeepTheirOrder) {
  passes("ordering");
}
TEST(Cuda, MemoryIsReal) {
  passes("memory");
}
TEST(Cuda, StreamWritesReachTheHostWhileTheStreamGoesOn) {
  passes("write_value");
}
TEST(Cuda, HostFunctionsRunInTheStreamsOrder) {
  passes("host_functions");
}
TEST(Cuda, GraphsRunWhatWasCaptured) {
  passes("graphs");
}
TEST(Cuda, KernelsDeclareTheirDuration) {
  passes("modules");
}
TEST(Cuda, EntryPointsAreFound) {
  passes("entry_points");
}
TEST(Cuda, ContextsAreTheThreads) {
  passes("contexts");
}
TEST(Cuda, ThreadsWithAGpuEach) {
  passes("threads");
}
TEST(Cuda, ProcessesWithAGpuEach) {
  passes("processes", 8);
}
TEST(Cuda, VisibleDevices) {
  passes("visible", 1, {{"CUDA_VISIBLE_DEVICES", "2,1,nonsense,3"}});
}
TEST(Cuda, AForkedChildHasNoGpu) {
  passes("fork_child");
}
TEST(Cuda, DataMayStayWhereItIs) {
  passes("unmoved", 1, {{"POWERCCL_EMULATOR_MOVE_DATA", "0"}});
}

TEST(Nvml, ReadsWhatIsThere) {
  passes("nvml");
}
TEST(Nvml, EnergyAgreesWithPower) {
  passes("energy");
}
TEST(Nvml, ClockCallsWaitForEachOther) {
  passes("clock_calls");
}
TEST(Nvml, FailsAsToldTo) {
  passes("failing_calls", 1,
         {{"POWERCCL_EMULATOR_NVML_FAIL", "set_locked_clocks:after=3:code=15,power:after=0:code=3"}});
}
TEST(Nvml, RefusesWithoutPermission) {
  passes("forbidden", 1, {{"POWERCCL_EMULATOR_MAY_SET_CLOCKS", "0"}});
}
TEST(Nvml, WorksAfterFork) {
  passes("nvml_after_fork");
}

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
