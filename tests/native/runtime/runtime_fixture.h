// SPDX-License-Identifier: Apache-2.0
// The adapter, the library and the driver in one, for tests of the runtime.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "../record/trace_reader.h"
#include "base/log.h"
#include "runtime/runtime.h"

namespace powerccl::test {

constexpr char kTable[] =
    "powerccl-policy-table 1\nplatform test\ngpu Tesla T4\nclock_max_mhz 1590\n"
    "overhead_bytes all_reduce 1048576\nmin_clock_mhz all_reduce 1048576 inf 480\n"
    "overhead_bytes all_gather 1048576\nmin_clock_mhz all_gather 1048576 inf 495\n"
    "overhead_bytes all_to_all 1048576\nmin_clock_mhz all_to_all 1048576 inf 510\nend 9\n";

inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000; ++i) {
    if (condition()) return true;
    usleep(1000);
  }
  return false;
}

inline CallSeen call(uint8_t pattern, uint64_t bytes, bool captured = false) {
  CallSeen seen;
  seen.pattern = pattern;
  seen.datatype = 7;
  seen.message_bytes = bytes;
  seen.stream = 0x10;
  seen.captured = captured;
  return seen;
}

inline GpuIdentity gpu_identity(int device = 0) {
  GpuIdentity gpu;
  gpu.device = device;
  snprintf(gpu.uuid, sizeof(gpu.uuid), "GPU-%d", device);
  copy_text(gpu.name, sizeof(gpu.name), "Tesla T4");
  return gpu;
}

class RuntimeTest : public testing::Test {
 public:
  void SetUp() override {
    set("POWERCCL_RUN_FOLDER", folder.path());
    copy_text(adapter.library, sizeof(adapter.library), "nccl 2.28.9 profiler v5");
    adapter.context = this;
    adapter.ask_kernel_events = [](void* self, bool on) { static_cast<RuntimeTest*>(self)->asked.store(on); };
    adapter.call_behind = [](void* self, void*, void (*function)(void*), void* data) {
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
    set("POWERCCL_POLICY", "per-call");
    set("POWERCCL_POLICY_TABLE", folder / "table");
  }
  std::string said() {
    std::string text(8192, '\0');
    const ssize_t got = read(said_[0], text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }
  Communicator* up(int nranks = 4, int rank = 0, int device = 0, uint64_t id = 77) {
    return runtime->communicator_up({id, "world", nranks, rank, 1}, gpu_identity(device), adapter);
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
  TraceFile trace() {
    for (uint32_t i = 0; runtime->gpu(i) != nullptr; ++i) runtime->gpu(i)->trace.flush();
    return read_trace(only_trace());
  }

  Folder folder;
  Adapter adapter;
  std::atomic<bool> asked{false};
  std::deque<std::function<void()>> behind;
  int call_behind_result = 0;
  std::atomic<int> callbacks_asked{0}, callbacks_run{0};
  std::unique_ptr<Runtime> runtime = std::make_unique<Runtime>();

 private:
  int said_[2] = {-1, -1};
  std::vector<std::string> names_;
};

}  // namespace powerccl::test
