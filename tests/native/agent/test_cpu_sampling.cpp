// SPDX-License-Identifier: Apache-2.0
// The real agent on a fake sysfs and this host's /proc/stat.
#include <algorithm>
#include <thread>

#include "../device/fake_powercap.h"
#include "agent_fixture.h"

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
