// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../device/support.h"
#include "agent_process.h"
#include "device/process.h"

// The real agent on the fake NVML.
class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.clear();
    setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
    unsetenv("POWERCCL_RUN_FOLDER");
    setenv("POWERCCL_SYSFS", sysfs_root.path().c_str(), 1);
  }
  void TearDown() override { unsetenv("POWERCCL_SYSFS"); }

  static void expect_end(AgentProcess& agent) {
    agent.close_input();
    EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  }
  // From its start to its end, with nothing between.
  void run_to_end(const AgentOptions& options) {
    AgentProcess agent(folder.path(), options);
    ASSERT_TRUE(agent.wait_ready()) << agent.messages();
    expect_end(agent);
  }
  std::string power_file() const {
    char host[64];
    powerccl::device::host_name(host, sizeof host);
    return folder.path() + "/power-" + host + ".csv";
  }

  ScratchFolder folder, sysfs_root;
  FakeNvml& fake = FakeNvml::instance();
};
