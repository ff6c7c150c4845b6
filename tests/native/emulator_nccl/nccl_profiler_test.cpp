// SPDX-License-Identifier: Apache-2.0
// Profiler plugins on emulated NCCL: how they are found, which ABI they are spoken to in, and the events in their
// order.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "emulation.h"

namespace powerccl::test {
namespace {

class Profiler : public ::testing::Test {
 protected:
  Lines record(const std::string& scenario, int ranks, Emulation::Environment environment) {
    const std::string path = emulation.folder() + "/record";
    environment.try_emplace("NCCL_PROFILER_PLUGIN", POWERCCL_TEST_PLUGIN);
    environment["RECORD"] = path;
    finished = emulation.run(scenario, ranks, environment);
    EXPECT_EQ(statuses(finished), std::vector<int>(static_cast<size_t>(ranks), 0)) << errors(finished);
    return read_lines(path + ".0");
  }
  Emulation emulation;
  std::vector<Finished> finished;
};

TEST_F(Profiler, ACollectiveOfV5InTheOrderOf2_28_9) {
  const Lines lines = record("profiled", 2, {});
  const Lines expected = {
      "main init v5 comm=1 name=- nodes=1 ranks=2 rank=0",
      "main start GroupApi 1 parent=0 captured=0 depth=1",
      "main state GroupApi 1 23",
      "main start CollApi 2 parent=1 AllReduce count=1000 ncclFloat32 root=0 stream=1 captured=0",
      "main stop CollApi 2",
      "main state GroupApi 1 24",
      "main start KernelLaunch 3 parent=1",
      "main stop KernelLaunch 3",
      "main start Group 4 parent=0",
      "main start Coll 5 parent=2 AllReduce count=1000 ncclFloat32 root=0 seq=0 channels=1 warps=16 RING LL",
      "main stop Coll 5",
      "main stop Group 4",
      "main stop GroupApi 1",
  };
  const Lines mine = only(lines, "^main");
  ASSERT_GE(mine.size(), expected.size()) << joined(lines);
  EXPECT_EQ(Lines(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(expected.size())), expected);
}

TEST_F(Profiler, KernelEventsComeFromTheProgressThreadWithTheGpusTime) {
  const Lines lines = record("profiled", 2, {});
  const Lines kernels = only(lines, "KernelCh");
  ASSERT_GE(kernels.size(), 3u) << joined(lines);
  std::smatch start, state;
  ASSERT_TRUE(
      std::regex_match(kernels[0], start, std::regex(R"(other start KernelCh (\d+) parent=5 channel=0 time=(\d+))")))
      << kernels[0];
  ASSERT_TRUE(std::regex_match(kernels[1], state, std::regex(R"(other state KernelCh (\d+) 22 time=(\d+))")))
      << kernels[1];
  EXPECT_EQ(kernels[2], "other stop KernelCh " + start[1].str());
  EXPECT_EQ(start[1], state[1]);
  const long long start_ns = std::stoll(start[2]), stop_ns = std::stoll(state[2]);
  EXPECT_GT(stop_ns, start_ns);
  EXPECT_LT(stop_ns - start_ns, 10'000'000'000ll);
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long long globaltimer_ns = now.tv_sec * 1'000'000'000ll + now.tv_nsec + 1'000'000'000'000ll;
  EXPECT_LT(stop_ns, globaltimer_ns);
  EXPECT_GT(stop_ns, globaltimer_ns - 60'000'000'000ll);
}

TEST_F(Profiler, AGroupHasOneGroupApiEventAndOneKernel) {
  const Lines lines = record("profiled", 2, {});
  const auto second = std::find_if(lines.begin(), lines.end(),
                                   [](const auto& line) { return line.find("depth=2") != std::string::npos; });
  ASSERT_NE(second, lines.end()) << joined(lines);
  const auto end =
      std::find_if(second, lines.end(), [](const auto& line) { return line.rfind("main stop GroupApi", 0) == 0; });
  const Lines group = only(Lines(second, end), "^main");
  const std::string expected =
      R"(main start GroupApi (\d+) parent=0 captured=0 depth=2
main state GroupApi \1 23
main start CollApi (\d+) parent=\1 AllGather count=100 ncclFloat32 root=0 stream=1 captured=0
main stop CollApi \2
main start P2pApi (\d+) parent=\1 Send count=10 ncclFloat32 stream=1 captured=0
main stop P2pApi \3
main start P2pApi (\d+) parent=\1 Recv count=10 ncclFloat32 stream=1 captured=0
main stop P2pApi \4
main state GroupApi \1 24
main start KernelLaunch (\d+) parent=\1
main stop KernelLaunch \5
main start Group (\d+) parent=0
main start Coll (\d+) parent=\2 AllGather count=400 ncclInt8 root=0 seq=0 channels=1 warps=16 RING LL
main start P2p (\d+) parent=\3 Send count=10 ncclFloat32 peer=1
main start P2p (\d+) parent=\4 Recv count=10 ncclFloat32 peer=1
main stop Coll \7
main stop P2p \8
main stop P2p \9
main stop Group \6
)";
  EXPECT_TRUE(std::regex_match(joined(group), std::regex(expected))) << joined(group);
}

TEST_F(Profiler, AllToAllIsSendsAndReceivesWithoutKernelEventsToOneself) {
  const Lines lines = record("profiled", 2, {});
  // The all-to-all's transfers have ten elements, to both ranks; the group before it adds one pair.
  EXPECT_EQ(only(lines, "start P2pApi .* Send count=10").size(), 3u);
  EXPECT_EQ(only(lines, "start P2p .* Recv count=10 ncclFloat32 peer=0").size(), 1u);
  // All-reduce, all-gather, two transfers of the group, two of the all-to-all, two replays.
  EXPECT_EQ(only(lines, "start KernelCh").size(), 8u) << joined(lines);
  EXPECT_EQ(only(lines, "stop KernelCh").size(), 8u);
}

TEST_F(Profiler, ACapturedCollectiveIsSeenAtEachReplay) {
  const Lines lines = record("profiled", 2, {});
  EXPECT_EQ(only(lines, "main start CollApi .* Reduce .*captured=1").size(), 1u);
  const Lines replays = only(lines, "start Coll .* Reduce ");
  ASSERT_EQ(replays.size(), 2u) << joined(lines);
  for (const std::string& replay : replays)
    EXPECT_EQ(replay.rfind("other", 0), 0u) << "the graph's host node raises it";
  EXPECT_NE(replays[0].find("seq=0"), std::string::npos);
  EXPECT_NE(replays[1].find("seq=1"), std::string::npos);
}

TEST_F(Profiler, WithoutKernelEventsACaptureIsToldOnceByTheCaller) {
  const Lines lines = record("profiled", 2, {{"RECORD_MASK", "0xf03"}});
  const Lines captured = only(lines, "start Coll .* Reduce ");
  ASSERT_EQ(captured.size(), 1u) << joined(lines);
  EXPECT_EQ(captured[0].rfind("main", 0), 0u);
  EXPECT_TRUE(only(lines, "KernelCh").empty());
}

TEST_F(Profiler, ApiEventsAlone) {
  const Lines lines = record("profiled", 2, {{"RECORD_MASK", "0x200"}});
  EXPECT_FALSE(only(lines, "start CollApi").empty());
  EXPECT_TRUE(only(lines, "start (Coll|P2p|Group|KernelCh|KernelLaunch) ").empty()) << joined(lines);
}

TEST_F(Profiler, TheMaskIsReadBeforeAnOperationsOwnApiEvent) {
  const Lines lines = record("sampled", 2, {{"RECORD_MASK", "0x303"}, {"RECORD_FROM", "500"}});
  // Sizes 1000, 1000, 10, 10, 1000: what an operation asks for counts from the next one on.
  const Lines kernels = only(lines, "start KernelCh");
  ASSERT_EQ(kernels.size(), 2u) << joined(lines);
  const Lines colls = only(lines, "start Coll ");
  ASSERT_EQ(colls.size(), 5u);
  const auto parent_of = [](const std::string& line) { return std::stoi(line.substr(line.find("parent=") + 7)); };
  const auto number_of = [](const std::string& line) { return std::stoi(line.substr(line.find("Coll ") + 5)); };
  EXPECT_EQ(parent_of(kernels[0]), number_of(colls[1]));
  EXPECT_EQ(parent_of(kernels[1]), number_of(colls[2]));
}

class Abi : public Profiler, public ::testing::WithParamInterface<int> {};

TEST_P(Abi, EveryVersionIsSpoken) {
  const int version = GetParam();
  const Lines lines = record("profiled", 2, {{"POWERCCL_EMULATOR_PROFILER_ABI", std::to_string(version)}});
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("init v" + std::to_string(version)), std::string::npos) << lines[0];
  EXPECT_EQ(only(lines, "start KernelCh").size(), 8u);
  EXPECT_EQ(only(lines, "start Coll ").size(), 4u);
  EXPECT_EQ(only(lines, "finalize").size(), 1u);
  const bool api = version > 4;
  EXPECT_EQ(!only(lines, "Api|KernelLaunch").empty(), api);
  if (!api) {
    const Lines mine = only(lines, "^main");
    ASSERT_GE(mine.size(), 5u);
    EXPECT_EQ(mine[1], "main start Group 1 parent=0");
    EXPECT_EQ(mine[2],
              "main start Coll 2 parent=1 AllReduce count=1000 ncclFloat32 root=0 seq=0 channels=1 warps=16 RING LL");
  }
}
INSTANTIATE_TEST_SUITE_P(Versions, Abi, ::testing::Values(4, 5, 6, 7));

TEST_F(Profiler, AnUnknownVersionIsSaidAndTheDefaultTaken) {
  const Lines lines = record("profiled", 2, {{"POWERCCL_EMULATOR_PROFILER_ABI", "3"}});
  EXPECT_EQ(only(lines, "init v5").size(), 1u);
  EXPECT_NE(finished[0].errors.find("hint: use 4 to 7"), std::string::npos) << finished[0].errors;
}

TEST_F(Profiler, PluginsAreFoundByPathAndByName) {
  const std::string folder = POWERCCL_TEST_PLUGIN_FOLDER;
  const std::string path = std::string(POWERCCL_TEST_LIBRARIES) + ":" + folder;
  EXPECT_FALSE(record("alone", 1, {}).empty());
  for (const char* name : {"recording", "libnccl-profiler-recording.so"}) {
    Emulation other;
    const std::string file = other.folder() + "/record";
    const auto ranks =
        other.run("alone", 1, {{"LD_LIBRARY_PATH", path}, {"NCCL_PROFILER_PLUGIN", name}, {"RECORD", file}});
    EXPECT_FALSE(read_lines(file + ".0").empty()) << name << errors(ranks);
  }
}

#ifndef __SANITIZE_ADDRESS__  // ASan wants to be preloaded before all else
TEST_F(Profiler, StaticPluginIsLookedForInTheProgramAndItsPreloads) {
  const std::string file = emulation.folder() + "/record";
  emulation.run("alone", 1,
                {{"LD_PRELOAD", POWERCCL_TEST_PLUGIN}, {"NCCL_PROFILER_PLUGIN", "STATIC_PLUGIN"}, {"RECORD", file}});
  EXPECT_FALSE(read_lines(file + ".0").empty());
}
#endif

TEST_F(Profiler, NoPluginNoEvents) {
  for (const char* name : {"none", "NONE", "/nowhere/plugin.so", "missing"}) {
    const std::string file = emulation.folder() + "/none";
    const auto ranks =
        emulation.run("alone", 1, {{"NCCL_PROFILER_PLUGIN", name}, {"RECORD", file}, {"NCCL_DEBUG", "INFO"}});
    EXPECT_EQ(ranks[0].status, 0) << ranks[0].errors;
    EXPECT_TRUE(read_lines(file + ".0").empty());
  }
}

TEST_F(Profiler, APluginThatFailsToInitialiseHarmsNothing) {
  const auto ranks = emulation.run("graphs", 2, {{"NCCL_PROFILER_PLUGIN", POWERCCL_TEST_PLUGIN}});
  EXPECT_EQ(statuses(ranks), std::vector<int>(2, 0)) << errors(ranks);
}

}  // namespace
}  // namespace powerccl::test
