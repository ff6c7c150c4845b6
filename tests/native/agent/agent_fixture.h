// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_TESTS_AGENT_FIXTURE_H
#define POWERCCL_TESTS_AGENT_FIXTURE_H
#include <fstream>

#include "../device/support.h"
#include "agent_process.h"
#include "device/process.h"
#include "power_samples.h"

// The real agent on the fake NVML and on two cores whose cpufreq is made of plain files.
class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.clear();
    setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
    unsetenv("POWERCCL_RUN_FOLDER");
    setenv("POWERCCL_SYSFS", sysfs_root.path().c_str(), 1);
    for (int cpu : {0, 1}) {
      std::filesystem::create_directories(cpufreq(cpu));
      set_khz(cpu, kUsualKhz);
    }
    ASSERT_EQ(powerccl::device::journal_open(&journal, folder.path().c_str(), nullptr), powerccl::device::kOk);
  }
  void TearDown() override {
    powerccl::device::journal_close(&journal);
    unsetenv("POWERCCL_SYSFS");
  }

  std::string power_file() const {
    char host[64];
    powerccl::device::host_name(host, sizeof host);
    return folder.path() + "/power-" + host + ".csv";
  }
  static constexpr uint32_t kUsualKhz = 2800000, kLowestKhz = 800000;
  std::string cpufreq(int cpu) const {
    return sysfs_root.path() + "/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq";
  }
  void set_khz(int cpu, uint32_t khz) { std::ofstream(cpufreq(cpu) + "/scaling_max_freq") << khz << "\n"; }
  uint32_t khz(int cpu) const {
    uint32_t value = 0;
    std::ifstream(cpufreq(cpu) + "/scaling_max_freq") >> value;
    return value;
  }
  // As the journal names it.
  static std::string core(int cpu) { return "cpu" + std::to_string(cpu) + "@" + std::to_string(kUsualKhz); }
  void lower(int cpu) { set_khz(cpu, kLowestKhz); }
  bool lowered(int cpu) const { return khz(cpu) == kLowestKhz; }
  bool restored(int cpu) const { return khz(cpu) == kUsualKhz; }

  powerccl_journal_slot slot(unsigned index) {
    powerccl_journal_slot found;
    powerccl::device::journal_read_slot(&journal, index, &found);
    return found;
  }

  ScratchFolder folder, sysfs_root;
  FakeNvml& fake = FakeNvml::instance();
  powerccl::device::Journal journal;
};

#endif
