// SPDX-License-Identifier: Apache-2.0
// What the plugin records of what each version of NCCL tells it.
#include <set>
#include <thread>

#include "adapter_fixture.h"

namespace powerccl::test {
namespace {

TEST_P(Adapter, RecordsAnAllReduceWithItsKernel) {
  in_child([&] {
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    ASSERT_NE(communicator.context(), nullptr);
    ASSERT_NE(Communicator::mask.load(), 0);
    const KernelOnGpu kernel = communicator.collective("AllReduce", 1 << 20);
    ASSERT_EQ(kernel.tasks.size(), 1u);
    Communicator::run(plugin, kernel, 5000000, 7000000);
  });
  const TraceFile file = read_trace(folder / "rank-0.trace");
  ASSERT_TRUE(file.good);
  EXPECT_EQ(std::string(file.header.gpu_uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
  EXPECT_EQ(std::string(file.header.gpu_pci), "00000000:65:00.0");
  EXPECT_EQ(std::string(file.header.library), "nccl profiler v" + std::to_string(GetParam()));
  EXPECT_EQ(file.header.rank, 0);
  EXPECT_EQ(file.header.nranks, 4);
  EXPECT_NE(file.header.pid, 0u);
  EXPECT_EQ(std::string(file.header.policy), "observe");
  EXPECT_NE(file.notes().find("gpu clock offset_ns "), std::string::npos);
  const auto comms = file.of(POWERCCL_REC_COMM);
  ASSERT_EQ(comms.size(), 2u);
  EXPECT_EQ(comms[0].comm_up.comm_id, 0xabcdefu);
  EXPECT_EQ(comms[0].comm_up.nranks, 4);
  EXPECT_EQ(std::string(comms[0].comm_up.name), "world");
  EXPECT_EQ(comms[1].flags, POWERCCL_FLAG_ENDED);
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_REDUCE);
  EXPECT_EQ(calls[0].call.bytes, 4u << 20);
  EXPECT_EQ(calls[0].call.group, 0u);
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
  std::set<int> ranks;
  std::set<std::string> gpus;
  for (const auto& path : folder.traces()) {
    const TraceFile file = read_trace(path);
    ASSERT_TRUE(file.good);
    ranks.insert(file.header.rank);
    gpus.insert(file.header.gpu_uuid);
    EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 300u);
    EXPECT_EQ(file.header.dropped, 0u);
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(gpus.size(), 4u);
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
    communicator.collective("AllReduce", 64);
  });
  EXPECT_EQ(only_trace().of(POWERCCL_REC_CALL).size(), 2u) << "and the parent goes on";
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

INSTANTIATE_TEST_SUITE_P(Versions, ApiAdapter, testing::Values(5, 6, 7), name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, Adapter, testing::Values(4, 5, 6, 7), name_of_version);

}  // namespace
}  // namespace powerccl::test
