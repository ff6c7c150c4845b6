// SPDX-License-Identifier: Apache-2.0
// What a simulated job leaves in its run folder.
#include "sim/run_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "bench/values.h"
#include "platforms.h"
#include "sim/simulation.h"

namespace powerccl::sim {
namespace {

namespace fs = std::filesystem;
using physics::platform_or_fail;

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() {
    char name[] = "/tmp/powerccl-sim-XXXXXX";
    home_ = mkdtemp(name);
  }
  ~RunFolderTest() override { fs::remove_all(home_); }

  fs::path record(const std::string& name, const std::string& scenario, PolicyName policy, double seconds = 2,
                  const physics::Platform& on = platform_or_fail("t4x8")) {
    About about;
    about.command = {"powerccl-sim"};
    about.scenarios = {"test.scn"};
    about.contents = scenario;
    about.policy = "auto";
    RunFolder folder(home_ / name, on, about);
    Asked asked;
    asked.policy = policy;
    asked.seconds = seconds;
    simulate(on, {bench::parse_scenario(scenario, "test.scn")}, nullptr, asked, &folder);
    return home_ / name;
  }

  fs::path home_;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<powerccl_trace_record> records_of(const fs::path& trace, uint16_t kind) {
  const std::string bytes = bytes_of(trace);
  powerccl_trace_header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  EXPECT_EQ(bytes.size(), POWERCCL_TRACE_HEADER_BYTES + header.committed * sizeof(powerccl_trace_record));
  std::vector<powerccl_trace_record> found;
  for (uint64_t i = 0; i < header.committed; ++i) {
    powerccl_trace_record record;
    std::memcpy(&record, bytes.data() + POWERCCL_TRACE_HEADER_BYTES + i * sizeof record, sizeof record);
    if (record.kind == kind) found.push_back(record);
  }
  return found;
}

// All that a trace can have: streams, graphs, messages, pieces that vary, a policy with clocks.
const char kJob[] =
    "streams comm\ngroup pipe 4\ncapture\ncompute 2\nall_reduce 4M\nend\ncompute 10\nreceive 1M from previous in pipe\n"
    "compute 3\nsend 1M to next in pipe\nall_to_all 2M vary 50%\nwait compute on comm\nall_reduce 16M on comm\n"
    "wait comm on compute\ncompute 3\n";

TEST_F(RunFolderTest, TheSameJobGivesTheSameBytes) {
  const fs::path one = record("one", kJob, PolicyName::kAuto, 10), other = record("other", kJob, PolicyName::kAuto, 10);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(one)) {
    ++files;
    EXPECT_TRUE(bytes_of(entry.path()) == bytes_of(other / entry.path().filename())) << entry.path().filename();
  }
  EXPECT_EQ(files, 8u + 2);
}

TEST_F(RunFolderTest, EachCallHasItsKernel) {
  const fs::path folder = record("run", kJob, PolicyName::kObserve);
  for (const int rank : {0, 1, 3, 7}) {
    const fs::path trace = folder / ("rank-" + std::to_string(rank) + ".trace");
    std::map<uint64_t, powerccl_trace_record> calls;
    for (const auto& call : records_of(trace, POWERCCL_REC_CALL)) {
      EXPECT_TRUE(calls.emplace(call.call.call_id, call).second);
    }
    std::map<uint64_t, int> runs;
    for (const auto& kernel : records_of(trace, POWERCCL_REC_KERNEL)) {
      ASSERT_EQ(calls.count(kernel.kernel.call_id), 1u);
      const powerccl_trace_record& call = calls[kernel.kernel.call_id];
      ++runs[call.call.call_id];
      EXPECT_EQ(kernel.kernel.pattern, call.call.pattern);
      EXPECT_EQ(kernel.kernel.bytes, call.call.bytes);
      EXPECT_EQ(kernel.comm, call.comm);
      EXPECT_GE(kernel.kernel.gpu_start_ns, call.call.start_ns);
      EXPECT_GT(kernel.kernel.gpu_stop_ns, kernel.kernel.gpu_start_ns);
      if (call.call.pattern != POWERCCL_SEND_RECEIVE) continue;
      const int place = rank % 4;
      EXPECT_EQ(kernel.kernel.peers[0], call.call.sends != 0 ? place + 2 : 0) << "one more than the next rank";
      EXPECT_EQ(kernel.kernel.peers[1] >> 4, call.call.receives != 0 ? place : 0) << "one more than the previous";
    }
    size_t captured = 0;
    for (const auto& [id, call] : calls) {
      const bool graph = (call.flags & POWERCCL_FLAG_CAPTURED) != 0;
      captured += graph ? 1 : 0;
      EXPECT_TRUE(graph ? runs[id] > 10 : runs[id] == 1) << id << ": " << runs[id];
    }
    EXPECT_EQ(captured, 1u);
  }
}

TEST_F(RunFolderTest, WhatVariesIsSizedAsItIsSent) {
  const fs::path folder = record("run", "compute 5\nall_to_all 2M vary 50%\n", PolicyName::kObserve);
  uint64_t sent = 0, received = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto call = records_of(folder / ("rank-" + std::to_string(rank) + ".trace"), POWERCCL_REC_CALL).front();
    EXPECT_EQ(call.call.sends, 8);
    sent += call.call.bytes;
    received += uint64_t{call.call.received_kib} << 10;
  }
  EXPECT_NEAR(static_cast<double>(received), static_cast<double>(sent), 8 * 1024);
}

TEST_F(RunFolderTest, EnergyOfTheSamplesIsThatOfTheGpus) {
  const std::string job = "compute 30\nall_reduce 116M\n";
  const fs::path folder = record("run", job, PolicyName::kObserve, 5);
  std::ifstream file(folder / "power-simulated-0.csv");
  std::map<std::string, double> first, last;  // uJ, by GPU
  for (std::string line; std::getline(file, line);) {
    std::istringstream columns(line);
    std::string time, gpu, uuid, power, energy;
    for (std::string* each : {&time, &gpu, &uuid, &power, &energy}) std::getline(columns, *each, ',');
    if (energy.empty() || energy == "energy_uj") continue;
    first.emplace(gpu, std::stod(energy));
    last[gpu] = std::stod(energy);
  }
  ASSERT_EQ(last.size(), 8u);
  double joules = 0;
  for (const auto& [gpu, energy] : last) joules += (energy - first[gpu]) * 1e-6;
  Asked asked;
  asked.seconds = 5;
  const Found found = simulate(platform_or_fail("t4x8"), {bench::parse_scenario(job, "test.scn")}, nullptr, asked);
  EXPECT_NEAR(joules / (found.joules / found.seconds * found.virtual_s), 1, 0.01);
}

TEST_F(RunFolderTest, EachHostHasItsOwnSamples) {
  const fs::path folder = record("run", "group pair 2 stride 8\ncompute 5\nall_reduce 1M in pair\nall_reduce 1M\n",
                                 PolicyName::kObserve, 1, platform_or_fail("h100x8", ":gpus=16,hosts=2"));
  EXPECT_TRUE(fs::exists(folder / "power-simulated-0.csv"));
  EXPECT_TRUE(fs::exists(folder / "power-simulated-1.csv"));
  const std::string bytes = bytes_of(folder / "rank-9.trace");
  powerccl_trace_header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  EXPECT_STREQ(header.host, "simulated-1");
  EXPECT_EQ(header.local_rank, 1);
  for (const auto& communicator : records_of(folder / "rank-9.trace", POWERCCL_REC_COMM)) {
    EXPECT_EQ(communicator.comm_up.nnodes, 2);
    EXPECT_EQ(communicator.comm_up.device, 1);
  }
}

TEST_F(RunFolderTest, AFolderWithFilesIsRefused) {
  record("run", "compute 5\nall_reduce 1M\n", PolicyName::kObserve, 0.5);
  EXPECT_THROW(record("run", "compute 5\nall_reduce 1M\n", PolicyName::kObserve, 0.5), bench::Failure);
}

}  // namespace
}  // namespace powerccl::sim
