// SPDX-License-Identifier: Apache-2.0
// The runtime without any library beneath: scripted events in, traces out.
#include "runtime/runtime.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "runtime/log.h"
#include "trace_reader.h"

namespace powerccl::test {
namespace {

constexpr char kTable[] =
    "powerccl-policy-table 1\nplatform test\ngpu Tesla T4\nclock_max_mhz 1590\n"
    "overhead_bytes all_reduce 1048576\nmin_clock_mhz all_reduce 1048576 inf 480\n"
    "overhead_bytes all_gather 1048576\nmin_clock_mhz all_gather 1048576 inf 495\n"
    "overhead_bytes all_to_all 1048576\nmin_clock_mhz all_to_all 1048576 inf 510\nend 9\n";

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000; ++i) {
    if (condition()) return true;
    usleep(1000);
  }
  return false;
}

CallSeen call(uint8_t pattern, uint64_t bytes, bool captured = false) {
  CallSeen seen;
  seen.pattern = pattern;
  seen.datatype = 7;
  seen.message_bytes = bytes;
  seen.stream = 0x10;
  seen.captured = captured;
  return seen;
}

GpuIdentity gpu_identity(int device = 0) {
  GpuIdentity gpu;
  gpu.device = device;
  snprintf(gpu.uuid, sizeof(gpu.uuid), "GPU-%d", device);
  copy_text(gpu.name, sizeof(gpu.name), "Tesla T4");
  return gpu;
}

// The door, the library and the driver in one.
class RuntimeTest : public testing::Test {
 public:
  void SetUp() override {
    set("POWERCCL_RUN_FOLDER", folder.path());
    copy_text(door.library, sizeof(door.library), "nccl 2.28.9 profiler v5");
    door.context = this;
    door.ask_kernel_events = [](void* self, bool on) { static_cast<RuntimeTest*>(self)->asked.store(on); };
    door.call_behind = [](void* self, void*, void (*function)(void*), void* data) {
      auto* test = static_cast<RuntimeTest*>(self);
      if (test->call_behind_result != 0) return test->call_behind_result;
      test->behind.push_back([=] { function(data); });
      return 0;
    };
    ASSERT_EQ(pipe2(said_, O_NONBLOCK), 0);
    log_to(said_[1]);
  }
  void TearDown() override {
    runtime->shut_down();
    log_to(2);
    close(said_[0]);
    close(said_[1]);
    for (const auto& name : names_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  void use_percall(const std::string& table = kTable) {
    folder.write("table", table);
    set("POWERCCL_POLICY", "percall");
    set("POWERCCL_POLICY_TABLE", folder / "table");
  }
  std::string said() {
    std::string text(8192, '\0');
    const ssize_t got = read(said_[0], text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }
  Communicator* up(int nranks = 4, int rank = 0, int device = 0, uint64_t id = 77) {
    return runtime->communicator_up({id, "world", nranks, rank, 1}, gpu_identity(device), door);
  }
  // A collective by itself, launched; its kernel if one was asked for.
  Handle collective(Communicator* communicator, const CallSeen& seen) {
    const Handle group = runtime->group_begins(communicator);
    const Handle handle = runtime->collective(communicator, group, seen);
    runtime->group_ending(group);
    runtime->launch_ends(runtime->launch_begins(communicator, group, nullptr));
    const Handle task = enqueue(communicator, handle, seen);
    runtime->group_ends(group);
    return task;
  }
  Handle enqueue(Communicator* communicator, Handle handle, const CallSeen& seen) {
    const Handle kernel = runtime->kernel_begins(communicator);
    TaskSeen task;
    task.call = handle;
    task.operation = seen;
    task.channels = 2;
    task.algorithm = POWERCCL_ALGO_RING;
    const Handle named = runtime->kernel_task(communicator, kernel, task);
    runtime->kernel_enqueued(kernel);
    return named;
  }
  void run(Handle task, uint64_t start_ns, uint64_t stop_ns) {
    const Handle first = runtime->channel_starts(task, start_ns);
    const Handle second = runtime->channel_starts(task, start_ns + 10);
    runtime->channel_stops(second, stop_ns);
    runtime->channel_stops(first, stop_ns - 10);
  }
  void run_callback() {
    ASSERT_FALSE(behind.empty());
    behind.front()();
    behind.pop_front();
  }
  std::filesystem::path only_trace() {
    const auto traces = folder.traces();
    EXPECT_EQ(traces.size(), 1u);
    return traces.empty() ? std::filesystem::path() : traces[0];
  }
  TraceFile trace() { return read_trace(only_trace()); }

  Folder folder;
  Door door;
  std::atomic<bool> asked{false};
  std::deque<std::function<void()>> behind;
  int call_behind_result = 0;
  std::atomic<int> callbacks_run{0};
  std::unique_ptr<Runtime> runtime = std::make_unique<Runtime>();

 private:
  int said_[2] = {-1, -1};
  std::vector<std::string> names_;
};

TEST_F(RuntimeTest, WithoutARunFolderNothingHappens) {
  unsetenv("POWERCCL_RUN_FOLDER");
  EXPECT_EQ(up(), nullptr);
  EXPECT_EQ(runtime->group_begins(nullptr), 0u);
  EXPECT_FALSE(asked.load());
  EXPECT_TRUE(folder.traces().empty());
  EXPECT_EQ(said(), "");
}

TEST_F(RuntimeTest, DisabledNothingHappens) {
  set("POWERCCL_DISABLE", "1");
  EXPECT_EQ(up(), nullptr);
  EXPECT_TRUE(folder.traces().empty());
}

TEST_F(RuntimeTest, AMissingRunFolderIsSaidOnce) {
  set("POWERCCL_RUN_FOLDER", folder / "none");
  EXPECT_EQ(up(), nullptr);
  EXPECT_EQ(up(), nullptr);
  const std::string text = said();
  EXPECT_NE(text.find("is not there; nothing is recorded\nhint: "), std::string::npos);
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
  EXPECT_NE(text.find("cannot be made (Permission denied); this rank is not recorded\nhint: "), std::string::npos);
  EXPECT_EQ(text.find("powerccl:"), text.rfind("powerccl:"));
}

TEST_F(RuntimeTest, ACallIsRecordedWithItsKernel) {
  set("RANK", "2");
  set("WORLD_SIZE", "4");
  Communicator* communicator = up(4, 2);
  ASSERT_NE(communicator, nullptr);
  const Handle task = collective(communicator, call(POWERCCL_ALL_GATHER, 1000));
  run(task, 5000, 9000);
  runtime->communicator_down(communicator);
  const TraceFile file = read_trace(folder / "rank-2.trace");
  ASSERT_TRUE(file.good);
  EXPECT_EQ(file.header.rank, 2);
  EXPECT_EQ(file.header.nranks, 4);
  EXPECT_EQ(file.header.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(std::string(file.header.gpu_uuid), "GPU-0");
  EXPECT_EQ(std::string(file.header.policy), "observe");
  EXPECT_EQ(std::string(file.header.library), "nccl 2.28.9 profiler v5");
  const auto comms = file.of(POWERCCL_REC_COMM);
  ASSERT_EQ(comms.size(), 2u);
  EXPECT_EQ(comms[0].comm_up.comm_id, 77u);
  EXPECT_EQ(comms[0].comm_up.nranks, 4);
  EXPECT_EQ(std::string(comms[0].comm_up.name), "world");
  EXPECT_EQ(comms[1].flags, POWERCCL_FLAG_ENDED);
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.bytes, 4000u);  // the gathered size
  EXPECT_EQ(calls[0].call.stream, 0x10u);
  EXPECT_EQ(calls[0].call.group, 0u);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].kernel.call_id, calls[0].call.call_id);
  EXPECT_EQ(kernels[0].kernel.gpu_start_ns, 5000u);
  EXPECT_EQ(kernels[0].kernel.gpu_stop_ns, 9000u);
  EXPECT_EQ(kernels[0].kernel.bytes, 4000u);
  EXPECT_NE(file.notes().find("gpu clock offset_ns "), std::string::npos);
}

TEST_F(RuntimeTest, ARankWhoseNameIsTakenWritesBesideIt) {
  set("RANK", "0");
  folder.write("rank-0.trace", "somebody's");
  ASSERT_NE(up(), nullptr);
  EXPECT_TRUE(read_trace(folder / ("rank-0." + std::to_string(getpid()) + ".trace")).good);
}

TEST_F(RuntimeTest, AnUnknownRankIsTheCommunicators) {
  ASSERT_NE(up(8, 5), nullptr);
  EXPECT_EQ(read_trace(folder / ("rank-5." + std::to_string(getpid()) + ".trace")).header.rank, 5);
}

TEST_F(RuntimeTest, SeveralRanksInAProcessHaveATraceEach) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([this, rank] {
      Communicator* communicator = up(4, rank, rank);
      ASSERT_NE(communicator, nullptr);
      for (int i = 0; i < 200; ++i) {
        const Handle task = collective(communicator, call(POWERCCL_ALL_REDUCE, 64u << 20));
        run(task, static_cast<uint64_t>(i) * 1000 + 100, static_cast<uint64_t>(i) * 1000 + 900);
      }
      runtime->communicator_down(communicator);
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(folder.traces().size(), 4u);
  std::map<int, std::string> uuids;
  for (const auto& path : folder.traces()) {
    const TraceFile file = read_trace(path);
    ASSERT_TRUE(file.good);
    uuids[file.header.rank] = file.header.gpu_uuid;
    EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 200u);
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(uuids[rank], "GPU-" + std::to_string(rank));
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

TEST_F(RuntimeTest, SendsAndReceivesBecomeOneCall) {
  Communicator* communicator = up(4);
  const Handle group = runtime->group_begins(communicator);
  Handle handle = 0;
  for (int peer = 0; peer < 4; ++peer) {
    handle = runtime->point_to_point(communicator, group, true, call(POWERCCL_SEND_RECEIVE, 1000));
    EXPECT_EQ(runtime->point_to_point(communicator, group, false, call(POWERCCL_SEND_RECEIVE, 1000)), handle);
  }
  runtime->group_ending(group);
  const Handle kernel = runtime->kernel_begins(communicator);
  Handle named = 0;
  for (int i = 0; i < 8; ++i) {
    TaskSeen task;
    task.call = handle;
    task.operation = call(POWERCCL_SEND_RECEIVE, 1000);
    task.point_to_point = true;
    task.send = i % 2 == 0;
    task.channels = 1;
    named = runtime->kernel_task(communicator, kernel, task);
  }
  runtime->kernel_enqueued(kernel);
  runtime->group_ends(group);
  for (int i = 0; i < 8; ++i) runtime->channel_stops(runtime->channel_starts(named, 100), 300);
  const TraceFile file = trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(calls[0].call.bytes, 4000u);
  EXPECT_EQ(calls[0].call.sends, 4);
  EXPECT_EQ(calls[0].call.receives, 4);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].kernel.pattern, POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(kernels[0].kernel.bytes, 4000u);
}

TEST_F(RuntimeTest, CopyEnginesLeaveACallButNoKernel) {
  Communicator* communicator = up(4);
  const Handle group = runtime->group_begins(communicator);
  const Handle handle = runtime->collective(communicator, group, call(POWERCCL_ALL_TO_ALL, 1000));
  runtime->launch_ends(runtime->copy_begins(communicator, handle, nullptr));
  runtime->group_ends(group);
  const auto calls = trace().of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_COPY_ENGINE, 0);
  EXPECT_EQ(calls[0].call.bytes, 4000u);
}

TEST_F(RuntimeTest, PercallSetsWhenCalledAndResetsBehind) {
  use_percall();
  Communicator* communicator = up();
  EXPECT_NE(said().find("policy percall runs dry"), std::string::npos);
  collective(communicator, call(POWERCCL_ALL_REDUCE, 1000));  // below the overhead point
  EXPECT_TRUE(behind.empty());
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_EQ(behind.size(), 1u);
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  run_callback();
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 2; }));
  const TraceFile file = trace();
  EXPECT_EQ(std::string(file.header.policy), "percall");
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

TEST_F(RuntimeTest, CapturedCallsAreRecordedAndNeverManaged) {
  use_percall();
  set("POWERCCL_KERNEL_EVENTS", "all");
  Communicator* communicator = up();
  const CallSeen seen = call(POWERCCL_ALL_REDUCE, 64u << 20, true);
  const Handle group = runtime->group_begins(communicator);
  const Handle handle = runtime->collective(communicator, group, seen);
  runtime->group_ending(group);
  runtime->launch_ends(runtime->launch_begins(communicator, group, nullptr));
  runtime->group_ends(group);
  EXPECT_TRUE(behind.empty());
  // Replays, long after the group is gone.
  for (uint64_t replay = 0; replay < 3; ++replay) {
    run(enqueue(communicator, handle, seen), 1000 * replay + 100, 1000 * replay + 900);
  }
  const TraceFile file = trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_CAPTURED, 0);
  EXPECT_EQ(calls[0].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_TRUE(file.of(POWERCCL_REC_CLOCK).empty());
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 3u);
  for (const auto& kernel : kernels) {
    EXPECT_EQ(kernel.kernel.call_id, calls[0].call.call_id);
    EXPECT_NE(kernel.flags & POWERCCL_FLAG_CAPTURED, 0);
  }
}

TEST_F(RuntimeTest, ACallThatWasNeverLaunchedDoesNotKeepTheClock) {
  use_percall();
  Communicator* communicator = up();
  const Handle group = runtime->group_begins(communicator);
  runtime->collective(communicator, group, call(POWERCCL_ALL_REDUCE, 4u << 20));
  runtime->group_ends(group);  // the library failed before its launch
  ASSERT_TRUE(eventually([&] { return trace().of(POWERCCL_REC_CLOCK).size() == 1; }));
  collective(communicator, call(POWERCCL_ALL_REDUCE, 4u << 20));
  ASSERT_EQ(behind.size(), 1u);
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
  set("POWERCCL_POLICY", "percall");
  Communicator* communicator = up();
  ASSERT_NE(communicator, nullptr);
  EXPECT_NE(said().find("policy percall becomes observe: there is no policy table\nhint: "), std::string::npos);
  EXPECT_EQ(std::string(trace().header.policy), "observe");
  EXPECT_EQ(trace().notes(), "observe, not percall: no policy table\n");
  collective(communicator, call(POWERCCL_ALL_REDUCE, 64u << 20));
  EXPECT_TRUE(behind.empty());
}

TEST_F(RuntimeTest, AWrongTableIsRefusedWithItsLine) {
  use_percall("powerccl-policy-table 1\nplatform test\nnonsense\nend 2\n");
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("table, line 3: unknown keyword `nonsense`\nhint: "), std::string::npos);
  EXPECT_EQ(trace().notes(), "observe, not percall: policy table refused\n");
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
  EXPECT_NE(said().find("POWERCCL_CLOCKS is none"), std::string::npos);
  EXPECT_EQ(std::string(trace().header.clock_client), "none");
}

TEST_F(RuntimeTest, ARealClockThatCannotBeOpenedMeansObserve) {
  use_percall();
  set("POWERCCL_CLOCKS", "nvml");
  door.open_clock = [](void*, const GpuIdentity&, const char*, ClockClient*, char* text, uint32_t size,
                       const char** hint) {
    copy_text(text, size, "libnvidia-ml.so.1 is not there");
    *hint = "install the driver";
    return -1;
  };
  ASSERT_NE(up(), nullptr);
  EXPECT_NE(said().find("code -1: libnvidia-ml.so.1 is not there)\nhint: install the driver\n"), std::string::npos);
  EXPECT_EQ(trace().notes(), "observe, not percall: clock cannot be set\n");
}

// The driver goes away in the middle of the job.
TEST_F(RuntimeTest, AClockThatFailsMidwayDisarms) {
  use_percall();
  set("POWERCCL_CLOCKS", "nvml");
  static std::atomic<int> result;
  static std::atomic<int> resets;
  result = 0;
  resets = 0;
  door.open_clock = [](void*, const GpuIdentity&, const char*, ClockClient* client, char*, uint32_t, const char**) {
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
  run_callback();
  ASSERT_TRUE(eventually([&] { return runtime->gpu(0)->actuator.switches() % 2 == 0; }));
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
  door.sees_calls = false;
  door.call_behind = nullptr;
  Communicator* communicator = up();
  ASSERT_TRUE(runtime->gpu(0)->managed);
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

TEST_F(RuntimeTest, AForkedChildLeavesTheParentsTraceAlone) {
  Communicator* communicator = up();
  collective(communicator, call(POWERCCL_ALL_REDUCE, 64));
  const size_t before = trace().records.size();
  const pid_t child = fork();
  if (child == 0) {
    runtime->forked_child();
    collective(communicator, call(POWERCCL_ALL_REDUCE, 64));
    runtime->communicator_down(communicator);
    if (up() != nullptr) _exit(1);
    runtime->shut_down();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(trace().records.size(), before);
  collective(communicator, call(POWERCCL_ALL_REDUCE, 64));
  EXPECT_GT(trace().records.size(), before);
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
  door.call_behind = [](void* self, void*, void (*function)(void*), void* data) {
    std::thread([=] { function(data); }).detach();
    static_cast<RuntimeTest*>(self)->callbacks_run++;
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
  usleep(100000);  // detached callbacks
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
