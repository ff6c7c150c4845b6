// SPDX-License-Identifier: Apache-2.0
// The runtime with POWERCCL_CLOCKS=lease: what it becomes when there is a lease, none for now, or none at all.
#include "../clock/fake_powerccld.h"
#include "runtime_fixture.h"

namespace powerccl::test {
namespace {

class RuntimeLeases : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    use_percall();
    set("POWERCCL_CLOCKS", "lease");
    set("POWERCCL_LEASE_SOCKET", folder / "socket");
  }
  FakePowerccld daemon{folder / "socket"};
};

TEST_F(RuntimeLeases, AManagedCallHasItsClock) {
  daemon.start();
  Communicator* communicator = up();
  EXPECT_EQ(said(), "");
  EXPECT_EQ(daemon.device, "GPU-0");
  EXPECT_EQ(daemon.run, folder.path().filename().string());
  EXPECT_EQ(std::string(trace().header.clock_client), "lease");
  EXPECT_EQ(std::string(trace().header.policy), "per-call");
  EXPECT_EQ(trace().header.flags & 1u, 0u);
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return daemon.now_mhz == 480u; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return daemon.now_mhz == 0u; }));
  runtime->shut_down();
  EXPECT_TRUE(eventually([&] { return daemon.releases == 1; }));
}

TEST_F(RuntimeLeases, ARefusalMeansObserve) {
  daemon.acquire_status = POWERCCL_LEASE_NOT_ALLOWED;
  daemon.start();
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("policy per-call becomes observe: cannot set the clock of the GPU (code -2: powerccld does not "
                        "allow this user to set it)\nhint: "),
            std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "observe");
  EXPECT_EQ(trace().notes(), "observe, not per-call: clock cannot be set\n");
}

TEST_F(RuntimeLeases, WithoutADaemonItStaysArmed) {
  Communicator* communicator = up();
  ASSERT_NE(communicator, nullptr);
  EXPECT_NE(said().find("cannot connect to powerccld"), std::string::npos);
  EXPECT_TRUE(runtime->gpu(0)->managed());
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  daemon.start();
  EXPECT_TRUE(eventually([&] { return daemon.now_mhz == 480u; }));
  EXPECT_FALSE(runtime->gpu(0)->actuator.failed());
}

// The driver goes away in the middle of the job.
TEST_F(RuntimeLeases, AClockThatFailsMidwayDisarms) {
  daemon.start();
  Communicator* communicator = up();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return daemon.now_mhz == 480u; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return daemon.now_mhz == 0u; }));
  daemon.set_status = 15;
  for (int i = 0; i < 200 && !runtime->gpu(0)->actuator.failed(); ++i) {
    collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
    usleep(2000);
    if (!behind.empty()) run_callback();
  }
  ASSERT_TRUE(runtime->gpu(0)->actuator.failed());
  behind.clear();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  EXPECT_TRUE(behind.empty());
  const std::string text = said();
  EXPECT_NE(text.find("the clock cannot be set (code 15"), std::string::npos) << text;
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
  runtime->communicator_down(communicator);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK).back().clock.result, 15);
}

TEST_F(RuntimeLeases, ADryDaemonMakesADryTrace) {
  daemon.welcome_flags = POWERCCL_LEASE_DRY;
  daemon.start();
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("runs dry"), std::string::npos);
  EXPECT_EQ(trace().header.flags & 1u, 1u);
}

TEST_F(RuntimeLeases, AForkedChildLeavesTheLeaseAlone) {
  daemon.start();
  Communicator* communicator = up();
  const pid_t child = fork();
  if (child == 0) {
    runtime->forked_child();
    runtime->shut_down();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  EXPECT_TRUE(eventually([&] { return daemon.now_mhz == 480u; }));
  EXPECT_EQ(daemon.releases, 0);
  EXPECT_EQ(daemon.ends, 0);
}

}  // namespace
}  // namespace powerccl::test
