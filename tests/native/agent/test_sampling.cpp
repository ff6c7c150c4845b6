// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <thread>

#include "../device/support.h"
#include "agent_fixture.h"

namespace {

TEST_F(AgentTest, SamplesEveryGpuUntilItsInputEnds) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready()) << agent.messages();
  EXPECT_GE(lines_of(power_file()).size(), 3u) << "the first rows are there before `ready`";
  ASSERT_TRUE(eventually([&] { return read_power_file(power_file()).rows.size() > 40; }));
  expect_end(agent);
  EXPECT_EQ(agent.messages(), "");

  PowerSamples samples = read_power_file(power_file());
  EXPECT_TRUE(samples.whole);
  EXPECT_EQ(samples.about["emulated"], "0");
  EXPECT_EQ(samples.about["interval_ns"], "5000000");
  EXPECT_EQ(samples.about["gpu_count"], "2");
  EXPECT_EQ(samples.about["gpu1_uuid"], fake_uuid(1));
  EXPECT_EQ(samples.about["gpu1_pci"], "00000001:01:00.0");
  EXPECT_EQ(samples.about["driver"], "999.1");
  EXPECT_EQ(samples.about["gpu1_power_limit_mw"], "60000");
  EXPECT_EQ(samples.about["gpu1_power_limit_max_mw"], "70000");
  long last_ns[2] = {0, 0};
  for (auto& row : samples.rows) {
    auto gpu = std::stoul(row["gpu"]);
    ASSERT_LT(gpu, 2u);
    EXPECT_EQ(row["uuid"], fake_uuid(static_cast<unsigned>(gpu)));
    EXPECT_EQ(row["power_mw"], std::to_string(30000 + gpu));
    EXPECT_EQ(row["sm_clock_mhz"], "1590");
    EXPECT_EQ(row["mem_clock_mhz"], "5000");
    EXPECT_EQ(row["temperature_c"], "41");
    EXPECT_EQ(row["throttle_reasons"], "0x20");
    EXPECT_EQ(row["utilization_pct"], "77");
    EXPECT_GT(std::stol(row["time_ns"]), last_ns[gpu]);
    last_ns[gpu] = std::stol(row["time_ns"]);
  }
  EXPECT_NE(samples.rows.front()["energy_uj"], "-1");
  EXPECT_NE(samples.rows.back()["energy_uj"], "-1") << "the counter is read at the end whatever its cadence";
}

TEST_F(AgentTest, ReadsADearEnergyCounterSeldom) {
  fake->energy_read_us = 3000;  // as on an H200
  AgentProcess agent(folder.path(), {{"--interval-ms", "10"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  ASSERT_TRUE(eventually([&] { return read_power_file(power_file()).rows.size() > 40; }));
  expect_end(agent);
  PowerSamples samples = read_power_file(power_file());
  EXPECT_GE(std::stol(samples.about["read_every_ns_energy_uj"]), 1'000'000'000);
  EXPECT_EQ(samples.about["read_every_ns_power_mw"], "10000000");
  size_t read = 0;
  for (auto& row : samples.rows) read += row["energy_uj"] != "-1" ? 1 : 0;
  EXPECT_GE(read, 4u) << "first and last row of both GPUs";
  EXPECT_LT(read, samples.rows.size() / 2);
}

TEST_F(AgentTest, WritesWithinASecondAndSurvivesItsOwnKill) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "10"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  ASSERT_TRUE(eventually([&] { return lines_of(power_file()).size() > 40; }));
  agent.signal(SIGKILL);
  EXPECT_EQ(agent.wait_exit(), 128 + SIGKILL);
  size_t rows = read_power_file(power_file()).rows.size();
  EXPECT_TRUE(read_power_file(power_file()).whole);

  // A second agent of the same run goes on behind them, also behind half a row.
  FILE* file = fopen(power_file().c_str(), "a");
  ASSERT_NE(file, nullptr);
  fputs("12345,0,GPU-", file);
  fclose(file);
  AgentProcess next(folder.path(), {{"--interval-ms", "10"}, {}, 0});
  ASSERT_TRUE(next.wait_ready()) << next.messages();
  next.close_input();
  ASSERT_EQ(next.wait_exit(), 0);
  PowerSamples samples = read_power_file(power_file());
  EXPECT_TRUE(samples.whole);
  EXPECT_GT(samples.rows.size(), rows);
}

TEST_F(AgentTest, RowsOfASlowCadenceAreNotHeldBack) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "1500"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  size_t rows = 2;
  EXPECT_TRUE(eventually([&] { return (rows = read_power_file(power_file()).rows.size()) > 2; }));
  EXPECT_EQ(rows, 4u) << "written at their own tick, not with the next one's";
}

TEST_F(AgentTest, WithoutNvmlItSaysSoOnceAndIsFine) {
  AgentProcess agent(folder.path(), {{}, {"POWERCCL_NVML_LIBRARY=/nowhere/libnvidia-ml.so.1"}, 0});
  ASSERT_TRUE(agent.wait_ready());
  expect_end(agent);
  std::string said = agent.messages();
  EXPECT_NE(said.find("no power samples"), std::string::npos) << said;
  EXPECT_NE(said.find("\nhint: "), std::string::npos) << said;
  EXPECT_EQ(said.find("no power samples"), said.rfind("no power samples"));
  PowerSamples samples = read_power_file(power_file());
  EXPECT_TRUE(samples.whole);
  EXPECT_NE(samples.about["nvml"].find("cannot load NVML"), std::string::npos);
  EXPECT_TRUE(samples.rows.empty());
}

TEST_F(AgentTest, MetricThatFailsIsMinusOne) {
  fake->result[kFakeEnergy] = 3;
  fake->result[kFakePowerField] = 3;
  fake->result[kFakePower] = 3;
  run_to_end({{"--interval-ms", "2"}, {}, 0});
  for (auto& row : read_power_file(power_file()).rows) {
    EXPECT_EQ(row["energy_uj"], "-1");
    EXPECT_EQ(row["power_mw"], "-1");
    EXPECT_EQ(row["sm_clock_mhz"], "1590");
  }
}

TEST_F(AgentTest, NumbersThatCannotBeAreMinusOne) {
  fake->gpu[1].power_mw = fake->gpu[1].clock_mhz = UINT32_MAX;
  fake->power_limit_mw = fake->power_limit_max_mw = UINT32_MAX;
  fake->temperature_c = 4000;
  run_to_end({{"--interval-ms", "2"}, {}, 0});
  PowerSamples samples = read_power_file(power_file());
  EXPECT_FALSE(samples.about.contains("gpu0_power_limit_mw"));
  EXPECT_FALSE(samples.about.contains("gpu0_power_limit_max_mw"));
  for (auto& row : samples.rows) {
    const bool odd = row["gpu"] == "1";
    EXPECT_EQ(row["power_mw"], odd ? "-1" : "30000");
    EXPECT_EQ(row["sm_clock_mhz"], odd ? "-1" : "1590");
    EXPECT_EQ(row["temperature_c"], "-1");
    EXPECT_EQ(row["utilization_pct"], "77");
  }
}

TEST_F(AgentTest, FullDiskEndsSamplingAndIsSaidOnce) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "1"}, {}, 8 << 10});
  ASSERT_TRUE(agent.wait_ready());
  ASSERT_TRUE(eventually([&] { return agent.messages().find("cannot write ") != std::string::npos; }));
  EXPECT_NE(agent.messages().find("\nhint: free some space"), std::string::npos) << agent.messages();
  PowerSamples samples = read_power_file(power_file());
  EXPECT_TRUE(samples.whole) << "what fitted is kept, up to its last whole row";
  EXPECT_GT(samples.rows.size(), 10u);
  EXPECT_TRUE(agent.running());
  std::string said = agent.messages();
  EXPECT_EQ(said.find("cannot write "), said.rfind("cannot write ")) << said;
  expect_end(agent);
}

TEST_F(AgentTest, NoSampleWritesNoFile) {
  run_to_end({{"--no-sample"}, {}, 0});
  EXPECT_FALSE(std::filesystem::exists(power_file()));
}

}  // namespace

// The real agent on a fake sysfs and this host's /proc/stat.
namespace {

class CpuSamplingTest : public AgentTest {
 protected:
  std::string cpu_file() const {
    std::string path = power_file();
    return path.replace(path.rfind("power-"), 6, "cpu-");
  }
  const std::string& sysfs() const { return sysfs_folder.path(); }
  // Without NVML, as on a node that has processors only.
  PowerSamples sample(std::vector<std::string> arguments = {}) {
    AgentProcess agent(
        folder.path(),
        {std::move(arguments), {"POWERCCL_NVML_LIBRARY=/nowhere/nvml.so", "POWERCCL_SYSFS=" + sysfs()}, 0});
    EXPECT_TRUE(agent.wait_ready()) << agent.messages();
    EXPECT_GE(lines_of(cpu_file()).size(), 3u) << "the first rows are there before `ready`";
    std::this_thread::sleep_for(std::chrono::milliseconds(450));
    expect_end(agent);
    EXPECT_EQ(agent.messages().find("processors"), std::string::npos) << agent.messages();
    return read_power_file(cpu_file());
  }

  ScratchFolder sysfs_folder;
};

TEST_F(CpuSamplingTest, EnergyAndTimeAreThereWithoutAnyGpu) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1000);
  make_zone(sysfs(), "intel-rapl:0:0", "dram", 50);
  PowerSamples samples = sample();
  EXPECT_TRUE(samples.whole);
  EXPECT_EQ(samples.about["interval_ns"], "100000000");
  EXPECT_EQ(samples.about["energy_source"], "powercap");
  EXPECT_EQ(samples.about["package-0_max_energy_range_uj"], "262143328850");
  EXPECT_EQ(samples.about["package-0/dram_max_energy_range_uj"], "262143328850");
  EXPECT_FALSE(samples.about.contains("energy_reason"));
  EXPECT_GE(std::stol(samples.about["ended_ns"]), std::stol(samples.rows.back()["time_ns"]));
  std::map<std::string, std::vector<long>> times;
  for (auto& row : samples.rows) {
    times[row["domain"]].push_back(std::stol(row["time_ns"]));
    const bool time = row["domain"] == "cpu";
    EXPECT_EQ(row["energy_uj"], time ? "-1" : row["domain"] == "package-0" ? "1000" : "50");
    EXPECT_EQ(row["cpu_busy_ns"] == "-1", !time);
    EXPECT_EQ(row["cpu_idle_ns"] == "-1", !time);
  }
  ASSERT_EQ(times.size(), 3u);
  for (auto& [domain, at_ns] : times) {
    EXPECT_GE(at_ns.size(), 2u) << domain;
    EXPECT_TRUE(std::is_sorted(at_ns.begin(), at_ns.end())) << domain;
    EXPECT_GE(at_ns.back() - at_ns.front(), 400'000'000) << "the last rows are taken at the end";
  }
  auto busy_and_idle = [](auto& row) { return std::stol(row["cpu_busy_ns"]) + std::stol(row["cpu_idle_ns"]); };
  EXPECT_EQ(samples.rows.back()["domain"], "cpu");
  EXPECT_GT(busy_and_idle(samples.rows.back()), busy_and_idle(samples.rows[2]));
}

TEST_F(CpuSamplingTest, WithoutCountersTheFileTellsWhyAndTimeGoesOn) {
  PowerSamples samples = sample();
  EXPECT_TRUE(samples.whole);
  EXPECT_NE(samples.about["energy_reason"].find("no RAPL"), std::string::npos);
  EXPECT_GE(samples.rows.size(), 2u);
  for (auto& row : samples.rows) EXPECT_EQ(row["domain"], "cpu");
}

TEST_F(CpuSamplingTest, SlowerSamplesOfGpusAreSlowerOnesOfProcessors) {
  EXPECT_EQ(sample({"--interval-ms", "1500"}).about["interval_ns"], "1500000000");
}

TEST_F(CpuSamplingTest, NoSampleWritesNoFile) {
  run_to_end({{"--no-sample"}, {}, 0});
  EXPECT_FALSE(std::filesystem::exists(cpu_file()));
}

}  // namespace
