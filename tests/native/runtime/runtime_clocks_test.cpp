// SPDX-License-Identifier: Apache-2.0
// The runtime and the clock: what is set, when it is given back, and when it is left alone.
#include "runtime_fixture.h"

namespace powerccl::test {
namespace {

TEST_F(RuntimeTest, PercallSetsWhenCalledAndResetsBehind) {
  use_percall();
  Communicator* communicator = up();
  EXPECT_NE(said().find("policy per-call runs dry"), std::string::npos);
  collective(communicator, call(POWERCCL_ALL_REDUCE, 1000));  // below the overhead point
  EXPECT_TRUE(behind.empty());
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_EQ(behind.size(), 1u);
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
  const TraceFile file = trace();
  EXPECT_EQ(std::string(file.header.policy), "per-call");
  EXPECT_EQ(std::string(file.header.clock_client), "dry");
  EXPECT_EQ(file.header.flags & 1u, 1u);
  const auto calls = file.of(POWERCCL_REC_CALL);
  EXPECT_EQ(calls[0].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_NE(calls[1].flags & POWERCCL_FLAG_MANAGED, 0);
  const auto clocks = file.of(POWERCCL_REC_CLOCK);
  EXPECT_EQ(clocks[0].clock.max_mhz, 480u);
  EXPECT_EQ(clocks[0].clock.call_id, calls[1].call.call_id);
  EXPECT_NE(clocks[0].flags & POWERCCL_FLAG_DRY, 0);
  EXPECT_GE(clocks[0].clock.asked_ns, calls[1].call.start_ns);
  EXPECT_EQ(clocks[1].clock.max_mhz, 0u);
  const auto callbacks = file.of(POWERCCL_REC_CALLBACK);
  ASSERT_EQ(callbacks.size(), 1u);
  EXPECT_EQ(callbacks[0].callback.call_id, calls[1].call.call_id);
}

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

TEST_F(RuntimeTest, ARefusedCallbackDisarms) {
  use_percall();
  call_behind_result = 700;
  Communicator* communicator = up();
  said();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  const std::string text = said();
  EXPECT_NE(text.find("CUDA error 700"), std::string::npos);
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
  const auto calls = trace().of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_EQ(calls[1].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_NE(trace().notes().find("disarmed to observe"), std::string::npos);
  runtime->communicator_down(communicator);
  const auto clocks = trace().of(POWERCCL_REC_CLOCK);
  for (size_t i = 1; i < clocks.size(); i += 2) EXPECT_EQ(clocks[i].clock.max_mhz, 0u);
  EXPECT_EQ(clocks.size() % 2, 0u);  // every set has its reset
}

TEST_F(RuntimeTest, WithoutATablePercallBecomesObserve) {
  set("POWERCCL_POLICY", "per-call");
  Communicator* communicator = up();
  ASSERT_NE(communicator, nullptr);
  EXPECT_NE(said().find("policy per-call becomes observe: there is no policy table\nhint: "), std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "observe");
  EXPECT_EQ(trace().notes(), "observe, not per-call: no policy table\n");
  collective(communicator, call(POWERCCL_ALL_REDUCE, 64u << 20));
  EXPECT_TRUE(behind.empty());
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

TEST_F(RuntimeTest, AWrongTableIsRefusedWithItsLine) {
  use_percall("powerccl-policy-table 1\nplatform test\nnonsense\nend 2\n");
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("table, line 3: unknown keyword `nonsense`\nhint: "), std::string::npos);
  EXPECT_EQ(trace().notes(), "observe, not per-call: policy table refused\n");
}

TEST_F(RuntimeTest, ATableOfAnotherGpuIsRefused) {
  use_percall("powerccl-policy-table 1\nplatform a\ngpu NVIDIA H200\nclock_max_mhz 1980\nend 3\n");
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("is for `NVIDIA H200`, this GPU is `Tesla T4`\nhint: "), std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "observe");
}

TEST_F(RuntimeTest, WithoutAClockClientPercallBecomesObserve) {
  use_percall();
  set("POWERCCL_CLOCKS", "none");
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("POWERCCL_CLOCKS=none"), std::string::npos);
  EXPECT_EQ(std::string(trace().header.clock_client), "none");
}

TEST_F(RuntimeTest, ARealClockThatCannotBeOpenedMeansObserve) {
  use_percall();
  set("POWERCCL_CLOCKS", "nvml");
  adapter.open_clock = [](void*, const GpuIdentity&, const char*, ClockClient*, char* text, uint32_t size,
                          const char** hint) {
    copy_text(text, size, "libnvidia-ml.so.1 is not there");
    *hint = "install the driver";
    return -1;
  };
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("code -1: libnvidia-ml.so.1 is not there)\nhint: install the driver\n"), std::string::npos);
  EXPECT_EQ(trace().notes(), "observe, not per-call: clock cannot be set\n");
}

// The driver goes away in the middle of the job.
TEST_F(RuntimeTest, AClockThatFailsMidwayDisarms) {
  use_percall();
  set("POWERCCL_CLOCKS", "nvml");
  static std::atomic<int> result;
  static std::atomic<int> resets;
  result = 0;
  resets = 0;
  adapter.open_clock = [](void*, const GpuIdentity&, const char*, ClockClient* client, char*, uint32_t, const char**) {
    client->set = [](void*, uint32_t, uint32_t) { return result.load(); };
    client->reset = [](void*) {
      ++resets;
      return result.load();
    };
    client->dry = false;
    return 0;
  };
  Communicator* communicator = up();
  EXPECT_EQ(trace().header.flags & 1u, 0u);
  EXPECT_EQ(said(), "");
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return runtime->gpu(0)->actuator.switches() == 1; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return runtime->gpu(0)->actuator.switches() == 2; }));
  result = 15;
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
  EXPECT_NE(text.find("the clock cannot be set (code 15)"), std::string::npos) << text;
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
  const int before = resets;
  runtime->communicator_down(communicator);
  EXPECT_GT(resets.load(), before);  // tried once more
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK).back().clock.result, 15);
}

TEST_F(RuntimeTest, ShutDownResetsWhatIsSet) {
  use_percall();
  Communicator* communicator = up();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  runtime->shut_down();
  ASSERT_EQ(trace().of(POWERCCL_REC_CLOCK).size(), 2u);
  EXPECT_EQ(trace().of(POWERCCL_REC_CLOCK)[1].clock.max_mhz, 0u);
}

TEST_F(RuntimeTest, LaunchTimeEventsAloneAreManagedByTheirKernels) {
  use_percall();
  adapter.sees_calls = false;
  adapter.call_behind = nullptr;
  Communicator* communicator = up();
  ASSERT_TRUE(runtime->gpu(0)->managed());
  const auto one = [&](uint64_t at) {
    const Handle task = enqueue(communicator, 0, call(POWERCCL_ALL_REDUCE, 4u << 20));
    const Handle first = runtime->channel_starts(task, at);
    const Handle second = runtime->channel_starts(task, at);
    usleep(3000);
    runtime->channel_stops(first, at + 500);
    runtime->channel_stops(second, at + 600);
  };
  // The first shows that such calls have kernel events at all; from then on they are managed.
  one(1000);
  EXPECT_EQ(trace().of(POWERCCL_REC_CALL)[0].flags & POWERCCL_FLAG_MANAGED, 0);
  one(2000);
  EXPECT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
  const auto calls = trace().of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_NE(calls[1].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_NE(calls[1].flags & POWERCCL_FLAG_COLL_EVENT, 0);
}

}  // namespace
}  // namespace powerccl::test
