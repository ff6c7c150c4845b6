// SPDX-License-Identifier: Apache-2.0
// What the plugin has done about clocks: when they are set and reset, and when it leaves them alone.
#include <algorithm>

#include "adapter_fixture.h"

namespace powerccl::test {
namespace {

TEST_P(Adapter, PercallRunsDry) {
  const bool callbacks = GetParam() >= 5;
  // Before 2.28 the end is known from kernel events alone, so the first call only shows that there are any.
  const size_t managed = callbacks ? 3 : 2;
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    size_t changes = 0;
    for (size_t i = 0; i < 3; ++i) {
      const bool is_managed = i + managed >= 3;
      const KernelOnGpu kernel =
          communicator.collective("AllReduce", 4 << 20, "ncclFloat32", 0, false, reinterpret_cast<void*>(0x77));
      if (is_managed) {
        EXPECT_TRUE(clocks_change(++changes));
      }
      Communicator::run(plugin, kernel, 1000 * i + 100, 1000 * i + 900);
      if (callbacks) {
        EXPECT_EQ(cuda.pending(), 1);
        EXPECT_EQ(cuda.last_stream(), reinterpret_cast<void*>(0x77));
        EXPECT_TRUE(cuda.run_one());
      }
      if (is_managed) {
        EXPECT_TRUE(clocks_change(++changes));
      }
    }
    communicator.collective("AllReduce", 100);  // below the overhead point
    EXPECT_EQ(cuda.pending(), 0);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(std::string(file.header.policy), "per-call");
  EXPECT_EQ(std::string(file.header.clock_client), "dry");
  EXPECT_EQ(file.header.flags & 1u, 1u);
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto clocks = file.of(POWERCCL_REC_CLOCK);
  ASSERT_EQ(calls.size(), 4u);
  ASSERT_EQ(clocks.size(), 2 * managed);
  for (size_t i = 0; i < managed; ++i) {
    const auto& call = calls[i + 3 - managed];
    EXPECT_NE(call.flags & POWERCCL_FLAG_MANAGED, 0);
    EXPECT_EQ(clocks[2 * i].clock.max_mhz, 480u);
    EXPECT_EQ(clocks[2 * i + 1].clock.max_mhz, 0u);
    EXPECT_NE(clocks[2 * i].flags & POWERCCL_FLAG_DRY, 0);
    EXPECT_EQ(clocks[2 * i].clock.call_id, call.call.call_id);
    EXPECT_GE(clocks[2 * i].clock.asked_ns, call.call.start_ns);
  }
  EXPECT_EQ(calls[3].flags & POWERCCL_FLAG_MANAGED, 0);
  const auto callbacks_run = file.of(POWERCCL_REC_CALLBACK);
  ASSERT_EQ(callbacks_run.size(), callbacks ? 3u : 0u);
  for (size_t i = 0; i < callbacks_run.size(); ++i) EXPECT_EQ(callbacks_run[i].callback.call_id, calls[i].call.call_id);
}

TEST_P(ApiAdapter, AMaskThatSomebodyElseSetStaysAndIsFollowed) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    const auto kernels = [&](int count) {
      for (int i = 0; i < count; ++i)
        Communicator::run(plugin, communicator.collective("AllReduce", 64), 1000 * i + 100, 1000 * i + 200);
    };
    kernels(100);
    const int own = Communicator::mask;
    EXPECT_NE(own, 0);
    const int more = own | static_cast<int>(nccl::kEventKernelCh | nccl::kEventColl | nccl::kEventProxyOp);
    Communicator::mask = more;  // such as NCCL's RAS client sets
    kernels(100);
    EXPECT_EQ(Communicator::mask, more);
    // Calls are not told of any more, while one holds a clock.
    const KernelOnGpu held = communicator.collective("AllReduce", 4 << 20);
    EXPECT_TRUE(clocks_change(1));
    const int less = static_cast<int>(nccl::kEventGroupApi);
    Communicator::mask = less;
    kernels(3);
    EXPECT_EQ(Communicator::mask, less);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  EXPECT_EQ(calls.size(), 201u);
  // Of the second hundred, all are asked for but perhaps the first.
  const auto asked = std::count_if(calls.begin() + 101, calls.begin() + 200,
                                   [](const auto& call) { return (call.flags & POWERCCL_FLAG_KERNEL_ASKED) != 0; });
  EXPECT_EQ(asked, 99);
  const auto clocks = file.of(POWERCCL_REC_CLOCK);
  ASSERT_FALSE(clocks.empty());
  EXPECT_EQ(clocks.back().clock.max_mhz, 0u);
}

// Set, never reset, and the process just ends: the library's destructor resets.
TEST_P(ApiAdapter, TheEndOfTheProcessResets) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    static Communicator* communicator = new Communicator(plugin, 4, 0);
    communicator->collective("AllReduce", 4 << 20);
    EXPECT_TRUE(clocks_change(1));
  });
  const auto clocks = only_trace().of(POWERCCL_REC_CLOCK);
  ASSERT_EQ(clocks.size(), 2u);
  EXPECT_EQ(clocks[0].clock.max_mhz, 480u);
  EXPECT_EQ(clocks[1].clock.max_mhz, 0u);
}

TEST_P(ApiAdapter, ARefusedHostFunctionDisarms) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    cuda.set_launch_result(1);
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    for (int i = 0; i < 3; ++i) communicator.collective("AllReduce", 4 << 20);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_EQ((calls[1].flags | calls[2].flags) & POWERCCL_FLAG_MANAGED, 0);
  const auto clocks = file.of(POWERCCL_REC_CLOCK);
  EXPECT_TRUE(clocks.empty() || clocks.back().clock.max_mhz == 0) << "what is set is reset";
  EXPECT_NE(file.notes().find("host callback refused"), std::string::npos);
}

TEST_P(ApiAdapter, CapturedCallsGetNoCallback) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    communicator.collective("AllReduce", 4 << 20, "ncclFloat32", 0, true);
    EXPECT_EQ(cuda.pending(), 0);
    for (uint64_t i = 0; i < 3; ++i) {
      Communicator::run(plugin, communicator.replay(), 1000 * i + 100, 1000 * i + 200);
    }
    // Its wish stays, captured or not: NCCL's counters of GPU and host must keep pace.
    const int mask = Communicator::mask;
    for (int i = 0; i < 200; ++i) {
      Communicator::run(plugin, communicator.collective("AllReduce", 64), 1, 2);
      EXPECT_EQ(Communicator::mask.load(), mask);
    }
  });
  const TraceFile file = only_trace();
  EXPECT_TRUE(file.of(POWERCCL_REC_CLOCK).empty());
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 201u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_CAPTURED, 0);
  size_t replays = 0;
  for (const auto& kernel : file.of(POWERCCL_REC_KERNEL)) {
    if (kernel.flags & POWERCCL_FLAG_CAPTURED) {
      ++replays;
      EXPECT_EQ(kernel.kernel.call_id, calls[0].call.call_id);
    }
  }
  EXPECT_EQ(replays, 3u);
}

TEST_P(Adapter, WithoutCudaItObserves) {
  in_child([&] {
    use_table();
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    Communicator::run(plugin, communicator.collective("AllReduce", 4 << 20), 1, 2);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(std::string(file.header.policy), "observe");
  EXPECT_EQ(std::string(file.header.gpu_uuid), "");
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 1u);
  EXPECT_NE(file.notes().find("observe, not per-call"), std::string::npos);
}

// Copy engines, told of from 2.29 on.
class CopyAdapter : public Adapter {};

TEST_P(CopyAdapter, CopyEnginesLeaveACallAndGetACallback) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    ASSERT_NE(Communicator::mask.load() & static_cast<int>(nccl::kEventCeColl), 0);
    void* group = nullptr;
    void* api = nullptr;
    void* copy = nullptr;
    nccl::EventDescriptor event = {};
    event.type = nccl::kEventGroupApi;
    plugin.start(communicator.context(), &group, &event);
    event = {};
    event.type = nccl::kEventCollApi;
    event.parent = group;
    event.coll_api = {"AlltoAll", 1 << 20, "ncclFloat32", 0, nullptr, false, 0};
    plugin.start(communicator.context(), &api, &event);
    plugin.stop(api);
    plugin.record(group, nccl::kStateGroupEndApiStart, nullptr);
    event = {};
    event.type = nccl::kEventCeColl;
    event.parent = api;
    event.ce_coll = {
        1, "AlltoAll", nullptr, nullptr, 1 << 20, 0, "ncclFloat32", "UC", false, 0, 0, 1, reinterpret_cast<void*>(0x99),
        0};
    plugin.start(communicator.context(), &copy, &event);
    EXPECT_NE(copy, nullptr);
    plugin.stop(copy);
    plugin.stop(group);
    EXPECT_EQ(cuda.last_stream(), reinterpret_cast<void*>(0x99));
    EXPECT_TRUE(cuda.run_one());
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(calls[0].call.bytes, 16u << 20);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_COPY_ENGINE, 0);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_EQ(file.of(POWERCCL_REC_CALLBACK).size(), 1u);
}

// The other suites have theirs in adapter_test.cpp.
INSTANTIATE_TEST_SUITE_P(Versions, CopyAdapter, testing::Values(6, 7), name_of_version);

}  // namespace
}  // namespace powerccl::test
