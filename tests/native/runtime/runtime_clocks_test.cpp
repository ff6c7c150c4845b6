// SPDX-License-Identifier: Apache-2.0
// The runtime and the clock: what is set, when it is given back, and when it is left alone.
#include "../clock/lease_fixture.h"
#include "runtime_fixture.h"

namespace powerccl::test {
namespace {

TEST_F(RuntimeTest, OverlappingCallsKeepTheClock) {
  use_percall();
  Communicator* communicator = up();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  collective(communicator, call(POWERCCL_ALL_GATHER, 4u << 20));
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
  run_callback();
  usleep(30000);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK).size(), 2u);
  run_callback();
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 3; }));
  const auto clocks = trace().of(POWERCCL_REC_CLOCK);
  EXPECT_EQ(clocks[0].clock.max_mhz, 480u);
  EXPECT_EQ(clocks[1].clock.max_mhz, 495u);
  EXPECT_EQ(clocks[2].clock.max_mhz, 0u);
}

TEST_F(RuntimeTest, AGroupOfManagedCallsHasOneCallbackAKernel) {
  use_percall();
  Communicator* communicator = up();
  const Handle group = runtime->group_begins(communicator);
  for (int i = 0; i < 3; ++i) runtime->collective(communicator, group, call(POWERCCL_ALL_REDUCE, 4u << 20));
  runtime->group_ending(group);
  runtime->launch_ends(runtime->launch_begins(communicator, group, nullptr));
  runtime->launch_ends(runtime->launch_begins(communicator, group, nullptr));
  runtime->group_ends(group);
  ASSERT_EQ(behind.size(), 2u);
  ASSERT_TRUE(eventually([&] { return !trace().of(POWERCCL_REC_CLOCK).empty(); }));
  run_callback();
  usleep(20000);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK).size(), 1u);
  run_callback();
  EXPECT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
}

TEST_F(RuntimeTest, SendsAndReceivesAreManagedOnceTheyAreAllThere) {
  use_percall();
  Communicator* communicator = up(2);
  const Handle group = runtime->group_begins(communicator);
  for (int peer = 0; peer < 2; ++peer) {
    runtime->point_to_point(communicator, group, true, call(POWERCCL_SEND_RECEIVE, 4u << 20));
    runtime->point_to_point(communicator, group, false, call(POWERCCL_SEND_RECEIVE, 4u << 20));
  }
  usleep(10000);
  EXPECT_TRUE(trace().of(POWERCCL_REC_CLOCK).empty());
  runtime->group_ending(group);
  EXPECT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK)[0].clock.max_mhz, 510u);
  runtime->launch_ends(runtime->launch_begins(communicator, group, nullptr));
  runtime->group_ends(group);
  run_callback();
  EXPECT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
}

TEST_F(RuntimeTest, ACallThatWasNeverLaunchedDoesNotKeepTheClock) {
  use_percall();
  Communicator* communicator = up();
  const Handle group = runtime->group_begins(communicator);
  runtime->collective(communicator, group, call(POWERCCL_ALL_REDUCE, 4u << 20));
  runtime->group_ends(group);  // a symmetric kernel or copy engines, or the library failed before its launch
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  ASSERT_EQ(behind.size(), 1u) << "behind whatever the stream holds";
  run_callback();
  EXPECT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK)[1].clock.max_mhz, 0u);
}

TEST_F(RuntimeTest, AnAbortedCommunicatorGivesTheClockBack) {
  use_percall();
  Communicator* communicator = up();
  const Handle task = collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  const Handle channel = runtime->channel_starts(task, 1000);
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  runtime->communicator_down(communicator);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK).size(), 2u);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK)[1].clock.max_mhz, 0u);
  // What comes late is for nobody.
  runtime->channel_stops(channel, 5000);
  EXPECT_EQ(runtime->channel_starts(task, 6000), 0u);
  EXPECT_EQ(runtime->group_begins(nullptr), 0u);
  EXPECT_EQ(collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20)), 0u);
  run_callback();
  // And the next communicator starts afresh, in the same trace.
  Communicator* next = up(4, 0, 0, 78);
  ASSERT_NE(next, nullptr);
  collective(next, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 3; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 4; }));
  runtime->communicator_down(next);
  const auto comms = trace().of(POWERCCL_REC_COMM);
  ASSERT_EQ(comms.size(), 4u);
  EXPECT_NE(comms[0].comm, comms[2].comm);
}

TEST_F(RuntimeTest, AutoReadsNoTable) {
  set("POWERCCL_POLICY", "auto");
  set("POWERCCL_POLICY_TABLE", folder / "none");
  Communicator* communicator = up();
  ASSERT_NE(communicator, nullptr);
  EXPECT_EQ(said().find("becomes observe"), std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "auto");
  EXPECT_EQ(trace().notes(), "");
  runtime->communicator_down(communicator);
  EXPECT_EQ(trace().of(POWERCCL_REC_BUDGET).size(), 1u) << "what it has come to";
}

// What makes per-call observe, what is said of it, and what the trace notes.
struct Obstacle {
  const char *name, *table, *clocks, *said, *noted;
};

class BecomesObserve : public RuntimeTest, public testing::WithParamInterface<Obstacle> {};

TEST_P(BecomesObserve, SaysWhyAndRecords) {
  const Obstacle& obstacle = GetParam();
  use_percall(obstacle.table);
  if (obstacle.table[0] == '\0') unsetenv("POWERCCL_POLICY_TABLE");
  set("POWERCCL_CLOCKS", obstacle.clocks);
  Communicator* communicator = up();
  ASSERT_NE(communicator, nullptr);
  EXPECT_NE(said().find(obstacle.said), std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "observe");
  const std::string noted = std::string("observe, not per-call: ") + obstacle.noted;
  EXPECT_EQ(trace().notes(), noted.substr(0, 47) + "\n") << "a record's room";
  collective(communicator, call(POWERCCL_ALL_REDUCE, 64u << 20));
  EXPECT_TRUE(behind.empty());
  EXPECT_EQ(trace().of(POWERCCL_REC_CALL).size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    All, BecomesObserve,
    testing::Values(Obstacle{"no_table", "", "dry",
                             "policy per-call becomes observe: there is no policy table\nhint: ", "no policy table"},
                    Obstacle{"wrong_table", "powerccl-policy-table 1\nplatform test\nnonsense\nend 2\n", "dry",
                             "table, line 3: unknown keyword `nonsense`\nhint: ", "policy table refused"},
                    Obstacle{"other_gpu",
                             "powerccl-policy-table 1\nplatform a\ngpu NVIDIA H200\nclock_max_mhz 1980\nend 3\n", "dry",
                             "is for `NVIDIA H200`, this GPU is `Tesla T4`\nhint: ", "policy table is for another GPU"},
                    Obstacle{"no_client", kTable, "none", "POWERCCL_CLOCKS=none", "POWERCCL_CLOCKS=none"}),
    [](const auto& obstacle) { return std::string(obstacle.param.name); });

}  // namespace

// The runtime with POWERCCL_CLOCKS=lease: what it becomes when there is a lease, none for now, or none at all.
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
