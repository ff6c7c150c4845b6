// SPDX-License-Identifier: Apache-2.0
// Calls of an old NCCL, seen by the functions that the library stands before.
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "abi/nccl_profiler.h"
#include "preload_fixture.h"

namespace powerccl::test {
namespace {

TEST_F(Preload, CallsOfAnOldNcclAreRecordedWithTheirKernels) {
  in_child([&] {
    void* comm = comm_of();
    EXPECT_EQ(all_reduce(comm, communicating), 0);
    EXPECT_EQ(ncclAllGather(nullptr, nullptr, 1 << 20, kFloat, comm, communicating), 0);
    EXPECT_EQ(ncclCommDestroy(comm), 0);
    EXPECT_EQ(fake_calls(), 2);
  });
  const TraceFile file = only_trace();
  ASSERT_TRUE(file.good);
  EXPECT_EQ(std::string(file.header.library), "nccl 2.21.5 preload");
  const auto comms = file.of(POWERCCL_REC_COMM);
  ASSERT_EQ(comms.size(), 2u);
  EXPECT_EQ(comms[0].comm_up.nranks, 4);
  EXPECT_NE(comms[0].comm_up.comm_id, 0u);
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_REDUCE);
  EXPECT_EQ(calls[0].call.bytes, 4u << 20);
  EXPECT_EQ(calls[0].call.datatype, kFloat);
  EXPECT_EQ(calls[0].call.stream, reinterpret_cast<uint64_t>(communicating));
  EXPECT_EQ(calls[1].call.pattern, POWERCCL_ALL_GATHER);
  EXPECT_EQ(calls[1].call.bytes, 16u << 20);  // of all ranks
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(kernels[i].kernel.call_id, calls[i].call.call_id);
    EXPECT_EQ(kernels[i].kernel.bytes, calls[i].call.bytes);
    EXPECT_EQ(kernels[i].kernel.pattern, calls[i].call.pattern);
    EXPECT_GE(kernels[i].kernel.gpu_stop_ns, kernels[i].kernel.gpu_start_ns);
    // Host times: within the call, give or take what the reference is off by.
    EXPECT_GT(kernels[i].kernel.gpu_start_ns, calls[i].call.start_ns - 50'000'000);
    EXPECT_LT(kernels[i].kernel.gpu_start_ns, calls[i].call.stop_ns + 50'000'000);
  }
  EXPECT_TRUE(file.of(POWERCCL_REC_WAIT).empty());
}

TEST_F(Preload, GroupsLaunchAtTheirOutermostEnd) {
  in_child([&] {
    void* comm = comm_of();
    void* part = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 1, 0, &part, nullptr), 0);
    ncclGroupStart();
    ncclGroupStart();
    all_reduce(comm, communicating);
    all_reduce(comm, communicating);
    const int before = fake_events();
    ncclGroupEnd();
    EXPECT_EQ(fake_events(), before) << "launched by an inner end";
    all_reduce(part, other);
    ncclGroupEnd();
    EXPECT_EQ(fake_depth(), 0);
    ncclGroupStart();
    for (int peer = 0; peer < 4; ++peer) {
      ncclSend(nullptr, 1 << 10, kFloat, peer, comm, communicating);
      ncclRecv(nullptr, 1 << 10, kFloat, peer, comm, communicating);
    }
    ncclGroupEnd();
    ncclCommDestroy(part);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NE(calls[i].flags & POWERCCL_FLAG_GROUPED, 0);
    EXPECT_EQ(calls[i].call.group, calls[0].call.group);
  }
  EXPECT_EQ(calls[3].call.pattern, POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(calls[3].call.sends, 4);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0].kernel.bytes, 8u << 20);  // both of one communicator, fused
  EXPECT_NE(kernels[0].flags & POWERCCL_FLAG_GROUPED, 0);
  EXPECT_EQ(kernels[1].kernel.bytes, 4u << 20);
  EXPECT_EQ(kernels[2].kernel.pattern, POWERCCL_ALL_TO_ALL);
  EXPECT_EQ(kernels[2].kernel.bytes, calls[3].call.bytes);
}

TEST_F(Preload, WhatNcclCallsItselfIsNoCallOfTheJob) {
  in_child([&] {
    void* comm = comm_of();
    EXPECT_EQ(ncclBcast(nullptr, 1 << 20, kFloat, 2, comm, communicating), 0);
    EXPECT_EQ(fake_calls(), 1);
    ncclCommDestroy(comm);
  });
  const auto calls = only_trace().of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_BROADCAST);
  EXPECT_EQ(calls[0].call.root_or_peer, 2);
}

TEST_F(Preload, NonBlockingCommunicatorsAreTakenUpOnceReady) {
  in_child([&] {
    void* comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, {"id"}, 1, nullptr), 7);
    all_reduce(comm, communicating);
    EXPECT_TRUE(folder.traces().empty());
    fake_set_ready(comm);
    all_reduce(comm, communicating);
    ncclCommDestroy(comm);
  });
  EXPECT_EQ(only_trace().of(POWERCCL_REC_CALL).size(), 1u);
}

TEST_F(Preload, CommunicatorsThatShrinkAndGrowAreCommunicators) {
  in_child([&] {
    void *comm = comm_of(), *smaller = nullptr, *larger = nullptr;
    int gone[] = {3};
    EXPECT_EQ(ncclCommShrink(comm, gone, 1, &smaller, nullptr, 0), 0);
    const Id id = {"same on new ranks"};
    EXPECT_EQ(ncclCommGrow(comm, 6, &id, -1, &larger, nullptr), 0);
    all_reduce(smaller, communicating);
    all_reduce(larger, communicating);
    for (void* each : {smaller, larger, comm}) ncclCommDestroy(each);
  });
  const TraceFile file = only_trace();
  std::vector<int> ranks;
  std::vector<uint64_t> ids;
  for (const auto& comm : file.of(POWERCCL_REC_COMM)) {
    if ((comm.flags & POWERCCL_FLAG_ENDED) != 0) continue;
    ranks.push_back(comm.comm_up.nranks);
    ids.push_back(comm.comm_up.comm_id);
  }
  EXPECT_EQ(ranks, (std::vector<int>{4, 3, 6}));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[1], ids[2]);
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 2u);
}

// A hold is for a call that will run; one that is given up never does.
TEST_F(Preload, WhatIsRevokedOrSuspendedHoldsNoClock) {
  for (const auto& give_up : std::vector<std::function<int(void*)>>{
           [](void* comm) { return ncclCommRevoke(comm, 0); }, [](void* comm) { return ncclCommSuspend(comm, 1); },
           [](void* comm) {
             void* smaller = nullptr;
             int gone[] = {3};
             return ncclCommShrink(comm, gone, 1, &smaller, nullptr, 1);
           }}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) std::filesystem::remove_all(entry);
    in_child([&] {
      use_table();
      void* comm = comm_of();
      all_reduce(comm, communicating, 4 << 20);
      EXPECT_TRUE(clocks_change(1));
      EXPECT_EQ(give_up(comm), 0);
      EXPECT_TRUE(clocks_change(2)) << "before the job's end, which gives all back";
    });
    const auto clocks = only_trace().of(POWERCCL_REC_CLOCK);
    ASSERT_EQ(clocks.size(), 2u);
    EXPECT_NE(clocks[0].clock.max_mhz, 0u);
    EXPECT_EQ(clocks[1].clock.max_mhz, 0u);
  }
}

// No profiler plugin is told of signals, in no version.
TEST_F(Preload, SignalsAreRecordedBesideAPlugin) {
  in_child([&] {
    int mask = 0;
    void* context = nullptr;
    auto* plugin = static_cast<nccl::ProfilerV6*>(dlsym(RTLD_DEFAULT, "ncclProfiler_v6"));
    ASSERT_NE(plugin, nullptr);
    ASSERT_EQ(plugin->init(&context, 0x77, &mask, nullptr, 1, 4, 0, nullptr), 0);
    ASSERT_NE(context, nullptr);
    void* comm = comm_of();
    ncclPutSignal(nullptr, 1 << 20, kFloat, 1, nullptr, 0, 0, 0, 0, comm, communicating);
    ncclGroupStart();
    ncclSignal(1, 0, 0, 0, comm, communicating);
    ncclWaitSignal(1, nullptr, comm, communicating);
    ncclGroupEnd();
    ncclAllGather(nullptr, nullptr, 1 << 20, kFloat, comm, communicating);  // whose plugin's events do not come here
    EXPECT_EQ(fake_calls(), 4);
    plugin->finalize(context);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].call.bytes, 4u << 20);
  EXPECT_EQ(calls[1].call.bytes, 0u);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(kernels[i].kernel.call_id, calls[i].call.call_id);
}

TEST_F(Preload, ThreadsDoNotDisturbEachOther) {
  constexpr int kThreads = 4, kRounds = 300;
  in_child([&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        int own[2] = {};
        void* comm = comm_of();
        void* event = new_event();
        for (int round = 0; round < kRounds; ++round) {
          compute(&own[0]);
          all_reduce(comm, &own[1]);
          cuEventRecord(event, &own[1]);
          cuStreamWaitEvent(&own[0], event, 0);
          ncclGroupStart();
          ncclSend(nullptr, 1, kFloat, 1, comm, &own[1]);
          ncclRecv(nullptr, 1, kFloat, 2, comm, &own[1]);
          ncclGroupEnd();
        }
        ncclCommDestroy(comm);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  EXPECT_EQ(calls.size(), 2u * kThreads * kRounds);
  std::map<uint64_t, uint32_t> reduces;  // ids and communicators
  for (const auto& each : calls) {
    if (each.call.pattern == POWERCCL_ALL_REDUCE) reduces[each.call.call_id] = each.comm;
  }
  const auto waits = file.of(POWERCCL_REC_WAIT);
  EXPECT_GT(waits.size(), 10u);  // calls come faster than marks are looked at
  for (const auto& each : waits) {
    ASSERT_TRUE(reduces.contains(each.wait.call_id));
    EXPECT_EQ(reduces[each.wait.call_id], each.comm);
  }
}

TEST_F(Preload, WhatIsUnfinishedIsNotWaitedFor) {
  in_child([&] {
    void* comm = comm_of();
    all_reduce(comm, communicating);
    fake_set_unready(true);
    for (int i = 0; i < 400; ++i) all_reduce(comm, communicating);  // more than there are pairs of events
    ncclCommDestroy(comm);
  });
  EXPECT_EQ(only_trace().of(POWERCCL_REC_CALL).size(), 401u);
}

TEST_F(Preload, WhatNobodyDefinesIsNotFound) {
  in_child([&] {
    EXPECT_NE(dlsym(RTLD_DEFAULT, "ncclAllReduce"), nullptr);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "ncclReduceScatter"), nullptr);  // the fake NCCL has none
    EXPECT_NE(dlerror(), nullptr);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "cudaGraphLaunch"), nullptr);  // nor have the fake CUDA runtimes
  });
}

TEST_F(Preload, EachCallerReachesTheCudaRuntimeItIsLinkedWith) {
  in_child([&] {
    for (const int version : {13, 12, 13, 12}) {
      const std::string path = std::string(POWERCCL_FAKE_CALLERS) + "/libcaller" + std::to_string(version) + ".so";
      void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      ASSERT_NE(library, nullptr) << dlerror();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(reinterpret_cast<int (*)(void*)>(dlsym(library, "launch"))(computing), version);
      }
    }
  });
}

}  // namespace
}  // namespace powerccl::test
