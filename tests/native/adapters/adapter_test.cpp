// SPDX-License-Identifier: Apache-2.0
// The plugin as NCCL sees it: dlopened, driven through its tables, with a fake libcuda beneath. Every test runs in a
// process of its own, because the plugin arms once a process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "../record/trace_reader.h"
#include "nccl_driver.h"
#include "policy_table.h"

namespace powerccl::test {
namespace {

struct FakeCuda {
  void* library = dlopen(POWERCCL_FAKE_CUDA_PATH, RTLD_NOW | RTLD_GLOBAL);
  void (*set_device)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_device"));
  void (*set_launch_result)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_launch_result"));
  bool (*run_one)() = reinterpret_cast<bool (*)()>(dlsym(library, "fake_run_one"));
  int (*pending)() = reinterpret_cast<int (*)()>(dlsym(library, "fake_pending"));
  void* (*last_stream)() = reinterpret_cast<void* (*)()>(dlsym(library, "fake_last_stream"));
};

class Adapter : public testing::TestWithParam<int> {
 protected:
  // What a child process prints and fails with becomes this test's.
  void in_child(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      setenv("POWERCCL_RUN_FOLDER", folder.path().c_str(), 0);
      setenv("POWERCCL_SHM", "/", 0);  // with room, whatever this machine has for shared memory
      body();
      fflush(nullptr);
      exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  void use_table() { use_policy_table(folder); }
  TraceFile trace(const std::string& name = "rank-0.trace") { return read_trace(folder / name); }
  TraceFile only_trace() {
    const auto traces = folder.traces();
    EXPECT_EQ(traces.size(), 1u);
    return traces.empty() ? TraceFile() : read_trace(traces[0]);
  }

  Folder folder;
};

// What NCCL tells from 2.28 on: the calls themselves.
class ApiAdapter : public Adapter {};

TEST_P(Adapter, RecordsAnAllReduceWithItsKernel) {
  in_child([&] {
    setenv("RANK", "0", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    ASSERT_NE(communicator.context(), nullptr);
    ASSERT_NE(Communicator::mask.load(), 0);
    const KernelOnGpu kernel = communicator.collective("AllReduce", 1 << 20);
    ASSERT_EQ(kernel.tasks.size(), 1u);
    Communicator::run(plugin, kernel, 5000000, 7000000);
  });
  const TraceFile file = trace();
  ASSERT_TRUE(file.good);
  EXPECT_EQ(std::string(file.header.gpu_uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
  EXPECT_EQ(std::string(file.header.gpu_pci), "00000000:65:00.0");
  EXPECT_EQ(std::string(file.header.library), "nccl profiler v" + std::to_string(GetParam()));
  EXPECT_EQ(file.header.rank, 0);
  ASSERT_EQ(file.of(POWERCCL_REC_COMM).size(), 2u);
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_REDUCE);
  EXPECT_EQ(calls[0].call.bytes, 4u << 20);
  EXPECT_EQ((calls[0].flags & POWERCCL_FLAG_COLL_EVENT) != 0, GetParam() == 4);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_KERNEL_ASKED, 0);
  EXPECT_GE(calls[0].call.stop_ns, calls[0].call.start_ns);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].kernel.call_id, calls[0].call.call_id);
  EXPECT_EQ(kernels[0].kernel.gpu_start_ns, 5000000u);
  EXPECT_EQ(kernels[0].kernel.gpu_stop_ns, 7000000u);
  EXPECT_EQ(kernels[0].kernel.bytes, 4u << 20);
  EXPECT_EQ(kernels[0].kernel.algorithm, POWERCCL_ALGO_RING);
  EXPECT_EQ(kernels[0].kernel.protocol, POWERCCL_PROTO_SIMPLE);
  EXPECT_EQ(kernels[0].kernel.channels, 4);
}

// What powerccl.<pattern> is to NCCL's function names: bytes are NCCL tests' `size`.
TEST_P(Adapter, BytesAreNcclTestsSize) {
  struct Case {
    const char* function;
    uint8_t pattern;
    uint64_t factor;
  };
  const Case cases[] = {{"AllReduce", POWERCCL_ALL_REDUCE, 1},
                        {"Broadcast", POWERCCL_BROADCAST, 1},
                        {"Reduce", POWERCCL_REDUCE, 1},
                        {"AllGather", POWERCCL_ALL_GATHER, 4},
                        {"ReduceScatter", POWERCCL_REDUCE_SCATTER, 4}};
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    for (const Case& each : cases) {
      Communicator::run(plugin, communicator.collective(each.function, 1000, "ncclFloat32", 2), 100, 200);
    }
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(calls.size(), 5u);
  ASSERT_EQ(kernels.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(calls[i].call.pattern, cases[i].pattern);
    EXPECT_EQ(calls[i].call.bytes, 4000 * cases[i].factor) << cases[i].function;
    EXPECT_EQ(kernels[i].kernel.bytes, 4000 * cases[i].factor) << cases[i].function;
    const bool rooted = cases[i].pattern == POWERCCL_BROADCAST || cases[i].pattern == POWERCCL_REDUCE;
    EXPECT_EQ(calls[i].call.root_or_peer, rooted ? 2 : -1);
  }
}

TEST_P(Adapter, SendsAndReceivesAreRecognised) {
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 1);
    Communicator::run(plugin, communicator.all_to_all(1000), 100, 200);
    for (int peer = 0; peer < 4; ++peer) communicator.add_send(1000, peer);  // a scatter's root
    communicator.add_receive(1000, 1);
    Communicator::run(plugin, communicator.group_end(), 300, 400);
    for (int peer = 0; peer < 4; ++peer) communicator.add_receive(1000, peer);  // a gather's
    communicator.add_send(1000, 1);
    Communicator::run(plugin, communicator.group_end(), 500, 600);
    communicator.add_send(1000, 2);  // a ring's neighbours
    communicator.add_receive(1000, 0);
    Communicator::run(plugin, communicator.group_end(), 700, 800);
    communicator.add_receive(1000, 0);
    Communicator::run(plugin, communicator.group_end(), 900, 1000);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(calls.size(), 5u);
  ASSERT_EQ(kernels.size(), 5u);
  const uint8_t patterns[] = {POWERCCL_ALL_TO_ALL, POWERCCL_SCATTER, POWERCCL_GATHER, POWERCCL_SEND_RECEIVE,
                              POWERCCL_SEND_RECEIVE};
  const uint64_t bytes[] = {16000, 16000, 16000, 4000, 4000};
  const int sends_to[] = {0, 0, 2, 3, 0}, receives_from[] = {0, 2, 0, 1, 1};  // plus 1; 0: several or none
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(calls[i].call.pattern, patterns[i]) << i;
    EXPECT_EQ(calls[i].call.bytes, bytes[i]) << i;
    EXPECT_EQ(kernels[i].kernel.pattern, patterns[i]) << i;
    EXPECT_EQ(kernels[i].kernel.bytes, bytes[i]) << i;
    EXPECT_EQ(kernels[i].kernel.gpu_start_ns, 100 + 200 * i);
    EXPECT_EQ(kernels[i].kernel.gpu_stop_ns, 200 + 200 * i);
    EXPECT_EQ(kernels[i].kernel.call_id, calls[i].call.call_id);
    const uint8_t* peers = kernels[i].kernel.peers;
    EXPECT_EQ((peers[0] | peers[1] << 8) & 0xfff, sends_to[i]) << i;
    EXPECT_EQ(peers[1] >> 4 | peers[2] << 4, receives_from[i]) << i;
  }
  EXPECT_EQ(calls[1].call.sends, 4);
  EXPECT_EQ(calls[1].call.receives, 1);
}

TEST_P(Adapter, PassiveWithoutARunFolder) {
  in_child([&] {
    unsetenv("POWERCCL_RUN_FOLDER");
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    EXPECT_EQ(communicator.context(), nullptr);
    EXPECT_EQ(Communicator::mask.load(), 0);
    Communicator::mask = 0xffff;  // NCCL calls even so, where somebody has set the mask
    Communicator::run(plugin, communicator.collective("AllReduce", 100), 1, 2);
    Communicator::run(plugin, communicator.all_to_all(100), 1, 2);
  });
  EXPECT_TRUE(folder.traces().empty());
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

TEST_P(Adapter, PercallRunsDry) {
  const bool callbacks = GetParam() >= 5;
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    for (int i = 0; i < 3; ++i) {
      const KernelOnGpu kernel =
          communicator.collective("AllReduce", 4 << 20, "ncclFloat32", 0, false, reinterpret_cast<void*>(0x77));
      usleep(20000);
      Communicator::run(plugin, kernel, 1000 * i + 100, 1000 * i + 900);
      if (callbacks) {
        EXPECT_EQ(cuda.pending(), 1);
        EXPECT_EQ(cuda.last_stream(), reinterpret_cast<void*>(0x77));
        EXPECT_TRUE(cuda.run_one());
      }
      usleep(20000);
    }
    communicator.collective("AllReduce", 100);
    EXPECT_EQ(cuda.pending(), 0);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(std::string(file.header.policy), "per-call");
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto clocks = file.of(POWERCCL_REC_CLOCK);
  ASSERT_EQ(calls.size(), 4u);
  // Before 2.28 the end is known from kernel events alone, so the first call only shows that there are any.
  const size_t managed = callbacks ? 3 : 2;
  ASSERT_EQ(clocks.size(), 2 * managed);
  for (size_t i = 0; i < managed; ++i) {
    EXPECT_EQ(clocks[2 * i].clock.max_mhz, 480u);
    EXPECT_EQ(clocks[2 * i + 1].clock.max_mhz, 0u);
    EXPECT_NE(clocks[2 * i].flags & POWERCCL_FLAG_DRY, 0);
    EXPECT_EQ(clocks[2 * i].clock.call_id, calls[i + 3 - managed].call.call_id);
  }
  EXPECT_EQ(calls[3].flags & POWERCCL_FLAG_MANAGED, 0);
  EXPECT_EQ(file.of(POWERCCL_REC_CALLBACK).size(), callbacks ? 3u : 0u);
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
    usleep(20000);
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

TEST_P(ApiAdapter, TagsOfTheJobAreRecordedFromV7On) {
  in_child([&] {
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    communicator.collective("AllReduce", 100);
    communicator.user_tag = 7;
    communicator.collective("AllReduce", 100);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto tags = file.of(POWERCCL_REC_TAG);
  ASSERT_EQ(calls.size(), 2u);
  ASSERT_EQ(tags.size(), GetParam() >= 7 ? 1u : 0u);
  for (const auto& tag : tags) {
    EXPECT_EQ(tag.tag.call_id, calls[1].call.call_id);
    EXPECT_EQ(tag.tag.tag, 7u);
  }
}

// NCCL has a pool in /dev/shm for each rank and communicator once it is asked for kernel events, and crashes where that
// does not fit.
TEST_P(ApiAdapter, WithoutSharedMemoryNoKernelEventsAreAskedFor) {
  in_child([&] {
    setenv("POWERCCL_KERNEL_EVENTS", "all", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator few(plugin, 2, 0);
    EXPECT_NE(Communicator::mask & nccl::kEventKernelCh, 0u);
    Communicator::run(plugin, few.collective("AllReduce", 1 << 20), 100, 200);
    Communicator many(plugin, 100'000'000, 0);
    EXPECT_EQ(Communicator::mask & nccl::kEventKernelCh, 0u);
    for (int i = 0; i < 100; ++i) few.collective("AllReduce", 1 << 20);
    EXPECT_EQ(Communicator::mask & nccl::kEventKernelCh, 0u);
    EXPECT_NE(Communicator::mask & nccl::kEventCollApi, 0u);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 101u);
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

TEST_P(ApiAdapter, ShortOperationsAreSampled) {
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    uint64_t at = 1000;
    for (int i = 0; i < 4000; ++i) {
      const bool large = i % 4 == 3;
      const uint64_t duration = large ? 2000000 : 40000;
      Communicator::run(plugin,
                        communicator.collective(large ? "AllReduce" : "Broadcast", large ? 64 << 20 : 1024 << (i % 4)),
                        at, at + duration);
      at += 3000000;
    }
  });
  size_t small = 0, large = 0;
  const TraceFile file = only_trace();
  for (const auto& kernel : file.of(POWERCCL_REC_KERNEL))
    ++(kernel.kernel.pattern == POWERCCL_ALL_REDUCE ? large : small);
  EXPECT_GE(large, 990u);
  EXPECT_GT(small, 6u);
  EXPECT_LT(small, 300u);
  size_t asked = 0;
  for (const auto& call : file.of(POWERCCL_REC_CALL)) asked += (call.flags & POWERCCL_FLAG_KERNEL_ASKED) != 0 ? 1 : 0;
  EXPECT_EQ(asked, small + large);
}

TEST_P(Adapter, SeveralGpusInOneProcess) {
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        cuda.set_device(rank);
        Communicator communicator(plugin, 4, rank);
        std::thread proxy;
        for (uint64_t i = 0; i < 300; ++i) {
          const KernelOnGpu kernel =
              i % 5 == 0 ? communicator.all_to_all(64) : communicator.collective("AllReduce", 64);
          if (proxy.joinable()) proxy.join();
          proxy = std::thread([&plugin, kernel, i] { Communicator::run(plugin, kernel, 1000 * i, 1000 * i + 500); });
        }
        // The communicator goes while its last kernel is still reporting.
        communicator.destroy();
        proxy.join();
      });
    }
    for (auto& thread : threads) thread.join();
  });
  ASSERT_EQ(folder.traces().size(), 4u);
  std::vector<int> ranks;
  for (const auto& path : folder.traces()) {
    const TraceFile file = read_trace(path);
    ASSERT_TRUE(file.good);
    ranks.push_back(file.header.rank);
    EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 300u);
    EXPECT_EQ(file.header.dropped, 0u);
  }
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3}));
}

TEST_P(Adapter, LateEventsAndASecondLifeAreHarmless) {
  in_child([&] {
    setenv("POWERCCL_KERNEL_EVENTS", "all", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    KernelOnGpu late;
    {
      Communicator communicator(plugin, 4, 0);
      late = communicator.collective("AllReduce", 4 << 20);
    }
    late.context = nullptr;
    Communicator::run(plugin, late, 100, 200);
    Communicator again(plugin, 4, 0, 0x1234);
    Communicator::run(plugin, again.collective("AllReduce", 4 << 20), 300, 400);
    dlclose(plugin.library);  // NCCL closes the plugin with its last communicator; threads may still be inside
    Communicator::run(plugin, late, 500, 600);
    again.destroy();
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(file.of(POWERCCL_REC_COMM).size(), 4u);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].kernel.gpu_start_ns, 300u);
}

TEST_P(Adapter, AForkedChildWritesNothing) {
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    communicator.collective("AllReduce", 64);
    const pid_t child = fork();
    if (child == 0) {
      communicator.collective("AllReduce", 64);
      Communicator second(plugin, 4, 0);
      _exit(second.context() == nullptr ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  });
  EXPECT_EQ(only_trace().of(POWERCCL_REC_CALL).size(), 1u);
}

// Set, never reset, and the process just ends: the library's destructor resets.
TEST_P(ApiAdapter, TheEndOfTheProcessResets) {
  in_child([&] {
    use_table();
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    static Communicator* communicator = new Communicator(plugin, 4, 0);
    communicator->collective("AllReduce", 4 << 20);
    usleep(50000);
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
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 3u);
  EXPECT_NE(file.notes().find("host callback refused"), std::string::npos);
}

// Events, handles and strings that no NCCL known to us sends.
TEST_P(Adapter, UnknownEventsAreIgnored) {
  in_child([&] {
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    for (int bit = 0; bit < 64; ++bit) {
      nccl::EventDescriptor event = {};
      event.type = uint64_t{1} << bit;
      void* handle = &event;
      EXPECT_EQ(plugin.start(communicator.context(), &handle, &event), 0);
      EXPECT_NE(handle, &event);
      EXPECT_EQ(plugin.record(handle, bit, nullptr), 0);
      EXPECT_EQ(plugin.stop(handle), 0);
    }
    for (uint64_t handle = 0; handle < 4096; ++handle) {
      EXPECT_EQ(plugin.stop(reinterpret_cast<void*>(handle * 0x123456789u)), 0);
    }
    Communicator::run(plugin, communicator.collective("SomethingNew", 100, "ncclFloat4"), 1, 2);
  });
  for (const auto& call : only_trace().of(POWERCCL_REC_CALL)) EXPECT_EQ(call.call.datatype, 255);
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

class Clocks : public Adapter {};

// The emulator speaks for NVML in the end-to-end tests; here it is simply not there.
TEST_P(Clocks, WithoutNvmlTheJobGoesOn) {
  in_child([&] {
    use_table();
    setenv("POWERCCL_CLOCKS", "nvml", 1);
    setenv("POWERCCL_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    communicator.collective("AllReduce", 4 << 20);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(std::string(file.header.policy), "observe");
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 1u);
  EXPECT_TRUE(file.of(POWERCCL_REC_CLOCK).empty());
  EXPECT_EQ(file.notes(), "observe, not per-call: clock cannot be set\n");
}

TEST(AdapterLifetime, ASecondVersionInOneProcessIsLeftAlone) {
  Folder folder;
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("POWERCCL_RUN_FOLDER", folder.path().c_str(), 1);
    const Plugin first = Plugin::load(5), second = Plugin::load(6);
    Communicator one(first, 2, 0), two(second, 2, 0);
    _exit(one.context() != nullptr && two.context() == nullptr ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(V5, Clocks, testing::Values(5));
INSTANTIATE_TEST_SUITE_P(Versions, ApiAdapter, testing::Values(5, 6, 7),
                         [](const auto& version) { return "v" + std::to_string(version.param); });
INSTANTIATE_TEST_SUITE_P(Versions, CopyAdapter, testing::Values(6, 7),
                         [](const auto& version) { return "v" + std::to_string(version.param); });
INSTANTIATE_TEST_SUITE_P(Versions, Adapter, testing::Values(4, 5, 6, 7),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace powerccl::test
