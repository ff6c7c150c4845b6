// SPDX-License-Identifier: Apache-2.0
// The runtime without any library beneath: scripted events in, traces out.
#include "runtime_fixture.h"

namespace powerccl::test {
namespace {

TEST_F(RuntimeTest, AMissingRunFolderIsSaidOnce) {
  set("POWERCCL_RUN_FOLDER", folder / "none");
  EXPECT_EQ(up(), nullptr);
  EXPECT_EQ(up(), nullptr);
  const std::string text = said();
  EXPECT_NE(text.find("does not exist; nothing is recorded\nhint: "), std::string::npos);
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
}

TEST_F(RuntimeTest, AFolderThatCannotBeWrittenIsSaidOnce) {
  if (geteuid() == 0) {
    // Root writes everywhere; a file in the folder's place is refused to root, too.
    folder.write("file", "");
    set("POWERCCL_RUN_FOLDER", folder / "file");
    EXPECT_EQ(up(), nullptr);
    EXPECT_NE(said().find("powerccl:"), std::string::npos);
    return;
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_EQ(up(), nullptr);
  EXPECT_EQ(up(), nullptr);
  const std::string text = said();
  EXPECT_NE(text.find("(Permission denied); this rank is not recorded\nhint: "), std::string::npos);
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
}

// Containers repeat process numbers: a third and a fourth of the same rank and number are recorded as well.
TEST_F(RuntimeTest, ProcessesOfOneNumberAreRecordedBesideEachOther) {
  set("RANK", "0");
  const std::string numbered = "rank-0." + std::to_string(getpid());
  for (const std::string& taken : {std::string("rank-0"), numbered, numbered + ".1"})
    folder.write((taken + ".trace").c_str(), "somebody's");
  ASSERT_NE(up(), nullptr);
  EXPECT_TRUE(read_trace(folder / (numbered + ".2.trace")).good);
}

TEST_F(RuntimeTest, AnUnknownRankIsTheCommunicators) {
  ASSERT_NE(up(8, 5), nullptr);
  EXPECT_EQ(read_trace(folder / ("rank-5." + std::to_string(getpid()) + ".trace")).header.rank, 5);
}

TEST_F(RuntimeTest, FusedCallsShareAGroup) {
  Communicator* communicator = up();
  const Handle group = runtime->group_begins(communicator);
  std::vector<Handle> handles;
  for (int i = 0; i < 3; ++i) {
    handles.push_back(runtime->collective(communicator, group, call(POWERCCL_ALL_REDUCE, 1u << 20)));
  }
  const Handle kernel = runtime->kernel_begins(communicator);
  Handle named = 0;
  for (const Handle handle : handles) {
    TaskSeen task;
    task.call = handle;
    task.operation = call(POWERCCL_ALL_REDUCE, 1u << 20);
    task.channels = 1;
    const Handle got = runtime->kernel_task(communicator, kernel, task);
    if (got != 0) named = got;
  }
  runtime->kernel_enqueued(kernel);
  runtime->group_ends(group);
  for (int i = 0; i < 3; ++i) runtime->channel_stops(runtime->channel_starts(named, 100 + i), 500 + i);
  const TraceFile file = trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 3u);
  for (const auto& each : calls) {
    EXPECT_NE(each.flags & POWERCCL_FLAG_GROUPED, 0);
    EXPECT_EQ(each.call.group, 1u);
  }
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_NE(kernels[0].flags & POWERCCL_FLAG_GROUPED, 0);
  EXPECT_EQ(kernels[0].kernel.bytes, 3u << 20);
  EXPECT_EQ(kernels[0].kernel.call_id, calls[0].call.call_id);
}

TEST_F(RuntimeTest, AGroupLargerThanItsPoolIsWhollyRecorded) {
  Communicator* communicator = up();
  const Handle group = runtime->group_begins(communicator);
  for (int i = 0; i < 100; ++i) runtime->collective(communicator, group, call(POWERCCL_REDUCE, 64));
  runtime->group_ends(group);
  const auto calls = trace().of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 100u);
  for (const auto& each : calls) EXPECT_EQ(each.call.group, 1u);
}

// No channel reports what a rank sends to itself: the kernel is over when the others have.
TEST_F(RuntimeTest, AKernelDoesNotWaitForWhatARankSendsToItself) {
  Communicator* communicator = up(4);
  const Handle group = runtime->group_begins(communicator);
  Handle handle = 0;
  for (int i = 0; i < 8; ++i) {
    handle = runtime->point_to_point(communicator, group, i % 2 == 0, call(POWERCCL_SEND_RECEIVE, 1000));
  }
  runtime->group_ending(group);
  const Handle kernel = runtime->kernel_begins(communicator);
  std::vector<Handle> named;
  for (int i = 0; i < 8; ++i) {
    TaskSeen task;
    task.call = handle;
    task.operation = call(POWERCCL_SEND_RECEIVE, 1000);
    task.point_to_point = true;
    task.send = i % 2 == 0;
    task.peer = i / 2;
    task.channels = 1;
    named.push_back(runtime->kernel_task(communicator, kernel, task));
  }
  runtime->kernel_enqueued(kernel);
  runtime->group_ends(group);
  // One after the other: those that have begun and not ended are waited for, too.
  std::vector<Handle> begun;
  for (size_t i = 0; i < named.size(); ++i) {
    if (i / 2 != static_cast<size_t>(communicator->rank)) begun.push_back(runtime->channel_starts(named[i], 100));
  }
  for (const Handle channel : begun) runtime->channel_stops(channel, 300);
  // Before anything is flushed.
  EXPECT_EQ(runtime->channel_starts(named.back(), 500), Handle{0});
  EXPECT_EQ(trace().of(POWERCCL_REC_KERNEL).size(), 1u);
}

TEST_F(RuntimeTest, PoolsThatAreUsedUpLeaveOutAndCount) {
  set("POWERCCL_KERNEL_EVENTS", "all");
  Communicator* communicator = up();
  // Groups whose end never comes.
  std::vector<Handle> groups;
  for (uint32_t i = 0; i < Runtime::kGroups; ++i) groups.push_back(runtime->group_begins(communicator));
  EXPECT_EQ(runtime->left_out(), 0u);
  EXPECT_EQ(runtime->group_begins(communicator), 0u);
  EXPECT_EQ(runtime->left_out(), 1u);
  // A call outside of all groups is still recorded.
  runtime->collective(communicator, 0, call(POWERCCL_ALL_REDUCE, 64));
  runtime->point_to_point(communicator, 0, true, call(POWERCCL_SEND_RECEIVE, 64));
  EXPECT_EQ(trace().of(POWERCCL_REC_CALL).size(), 2u);
  for (const Handle group : groups) runtime->group_ends(group);
  EXPECT_NE(runtime->group_begins(communicator), 0u);
  // Kernels that never end.
  for (uint32_t i = 0; i < Runtime::kKernels + 10; ++i) collective(communicator, call(POWERCCL_ALL_REDUCE, 64));
  EXPECT_EQ(runtime->left_out(), 11u);
  runtime->communicator_down(communicator);
  communicator = up();
  const Handle task = collective(communicator, call(POWERCCL_ALL_REDUCE, 64));
  EXPECT_NE(task, 0u);
  for (uint32_t i = 1; i < Runtime::kCommunicators; ++i) ASSERT_NE(up(), nullptr) << i;
  EXPECT_EQ(up(), nullptr);
}

TEST_F(RuntimeTest, HandlesThatWereNeverGivenAreIgnored) {
  Communicator* communicator = up();
  uint64_t state = 88172645463325252u;
  for (int i = 0; i < 100000; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const Handle handle = state;
    runtime->group_ending(handle);
    runtime->group_ends(handle);
    runtime->launch_ends(handle);
    runtime->kernel_enqueued(handle);
    runtime->channel_stops(runtime->channel_starts(handle, i), i);
    runtime->collective(communicator, handle, call(POWERCCL_ALL_REDUCE, 64));
  }
  EXPECT_TRUE(trace().of(POWERCCL_REC_KERNEL).empty());
}

TEST_F(RuntimeTest, ManyThreadsCommunicatorsAndAborts) {
  use_percall();
  adapter.call_behind = [](void* self, void*, void (*function)(void*), void* data) {
    auto* test = static_cast<RuntimeTest*>(self);
    ++test->callbacks_asked;
    std::thread([=] {
      function(data);
      ++test->callbacks_run;
    }).detach();
    return 0;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < 5; ++round) {
        Communicator* communicator = up(4, t, t % 2, 100 + t);
        ASSERT_NE(communicator, nullptr);
        std::vector<Handle> tasks;
        for (int i = 0; i < 100; ++i) {
          tasks.push_back(collective(communicator, call(POWERCCL_ALL_REDUCE, i % 3 == 0 ? 4u << 20 : 64)));
        }
        // Channels report from another thread while the communicator is taken down.
        std::thread proxy([this, tasks] {
          for (const Handle task : tasks) run(task, 1000, 2000);
        });
        runtime->communicator_down(communicator);
        proxy.join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(eventually([&] { return callbacks_run == callbacks_asked; }));
  runtime->shut_down();
  for (const auto& path : folder.traces()) {
    const auto clocks = read_trace(path).of(POWERCCL_REC_CLOCK);
    ASSERT_FALSE(clocks.empty());
    EXPECT_EQ(clocks.back().clock.max_mhz, 0u);
  }
  EXPECT_GT(callbacks_run.load(), 0);
}

}  // namespace
}  // namespace powerccl::test
