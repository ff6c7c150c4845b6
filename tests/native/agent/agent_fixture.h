// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_TESTS_AGENT_FIXTURE_H
#define POWERCCL_TESTS_AGENT_FIXTURE_H
#include "../device/support.h"
#include "agent_process.h"
#include "device/process.h"
#include "power_samples.h"

// The real agent on the fake NVML.
class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.clear();
    setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
    unsetenv("POWERCCL_CLOCKS");
    unsetenv("POWERCCL_RUN_FOLDER");
    ASSERT_EQ(powerccl::device::journal_open(&journal, folder.path().c_str(), nullptr), powerccl::device::kOk);
  }
  void TearDown() override { powerccl::device::journal_close(&journal); }

  std::string power_file() const {
    char host[64];
    powerccl::device::host_name(host, sizeof host);
    return folder.path() + "/power-" + host + ".csv";
  }
  // A lock as a rank would leave it: on the device and in the journal.
  void lock_as(const Rank&, unsigned gpu) { fake->gpu[gpu].locked_mhz = 480; }
  bool unlocked(unsigned gpu) const {
    return __atomic_load_n(&FakeNvml::instance()->gpu[gpu].locked_mhz, __ATOMIC_ACQUIRE) == 0;
  }

  powerccl_journal_slot slot(unsigned index) {
    powerccl_journal_slot found;
    powerccl::device::journal_read_slot(&journal, index, &found);
    return found;
  }

  ScratchFolder folder;
  FakeNvml& fake = FakeNvml::instance();
  powerccl::device::Journal journal;
};

#endif
