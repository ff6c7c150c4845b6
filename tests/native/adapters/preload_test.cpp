// SPDX-License-Identifier: Apache-2.0
// The functions that the library stands before, over an old NCCL and a driver that do nothing. This program is linked
// with the library in front of them, which the loader treats as it does a preloaded one. Every test runs in a process
// of its own, because the runtime arms once a process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../record/trace_reader.h"
#include "adapters/nccl/profiler_abi.h"
#include "policy_table.h"

extern "C" {
struct Id {
  char bytes[128];
};
int ncclCommInitRank(void**, int, Id, int);
int ncclCommInitRankConfig(void**, int, Id, int, void*);
int ncclCommInitAll(void**, int, const int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommDestroy(void*);
int ncclCommShrink(void*, int*, int, void**, void*, int);
int ncclCommGrow(void*, int, const Id*, int, void**, void*);
int ncclCommSuspend(void*, int);
int ncclCommRevoke(void*, int);
int ncclPutSignal(const void*, size_t, int, int, void*, size_t, int, int, unsigned, void*, void*);
int ncclSignal(int, int, int, unsigned, void*, void*);
int ncclWaitSignal(int, void*, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclBcast(void*, size_t, int, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
int cuEventRecord(void*, void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuCtxDestroy_v2(void*);
int cudaDeviceReset();
int cuEventCreate(void**, unsigned);
void fake_set_result(int);
void fake_set_ready(void*);
int fake_calls();
int fake_depth();
void fake_set_wait(int, int);
void fake_set_unready(bool);
void fake_set_capturing(const void*);
int fake_kernels();
int fake_events();
}

namespace powerccl::test {
namespace {

constexpr int kFloat = 7;

class Preload : public testing::Test {
 protected:
  void in_child(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      setenv("POWERCCL_RUN_FOLDER", folder.path().c_str(), 0);
      setenv("POWERCCL_KERNEL_EVENTS", "all", 0);
      body();
      fflush(nullptr);
      exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  TraceFile only_trace() {
    const auto traces = folder.traces();
    EXPECT_EQ(traces.size(), 1u);
    return traces.empty() ? TraceFile() : read_trace(traces[0]);
  }
  static void* comm_of(int ranks = 4, int rank = 0) {
    void* comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, ranks, {"same on all ranks"}, rank), 0);
    return comm;
  }
  static int all_reduce(void* comm, void* stream, size_t count = 1 << 20) {
    return ncclAllReduce(nullptr, nullptr, count, kFloat, 0, comm, stream);
  }
  static void compute(void* stream, int kernels = 1) {
    for (int i = 0; i < kernels; ++i) cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }
  static void* new_event() {
    void* event = nullptr;
    cuEventCreate(&event, 0);
    return event;
  }

  Folder folder;
  int place[4] = {};  // streams by their addresses
  void* const computing = &place[0];
  void* const communicating = &place[1];
  void* const other = &place[2];
};

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
    EXPECT_NEAR(static_cast<double>(kernels[i].kernel.gpu_start_ns), static_cast<double>(calls[i].call.start_ns), 2e6);
  }
  EXPECT_TRUE(file.of(POWERCCL_REC_WAIT).empty());
}

TEST_F(Preload, WhereAComputingStreamWaitsIsMarked) {
  in_child([&] {
    void* comm = comm_of();
    void* event = new_event();
    compute(computing, 100);
    fake_set_wait(0, 0);
    cuEventRecord(event, computing);
    cuStreamWaitEvent(communicating, event, 0);  // for computation: no mark
    all_reduce(comm, communicating);
    cuEventRecord(event, communicating);
    fake_set_wait(20, 0);
    EXPECT_EQ(cuStreamWaitEvent(computing, event, 0), 0);
    EXPECT_EQ(cuStreamWaitEvent(computing, event, 0), 0);  // the same again: nothing new
    // A stream with hardly any kernels is none that computes, but hands on what it waits for.
    compute(other, 1);
    all_reduce(comm, communicating);
    cuEventRecord(event, communicating);
    cuStreamWaitEvent(other, event, 0);
    void* second = new_event();
    cuEventRecord(second, other);
    cuStreamWaitEvent(computing, second, 0);
    // Behind a good deal of computation an event is that computation's.
    all_reduce(comm, communicating);
    cuEventRecord(event, communicating);
    cuStreamWaitEvent(other, event, 0);
    compute(other, 5);
    cuEventRecord(second, other);
    const int events = fake_events();
    cuStreamWaitEvent(computing, second, 0);
    EXPECT_EQ(fake_events(), events);
    EXPECT_EQ(fake_kernels(), 106);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto waits = file.of(POWERCCL_REC_WAIT);
  ASSERT_EQ(calls.size(), 3u);
  ASSERT_EQ(waits.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(waits[i].wait.call_id, calls[i].call.call_id);
    EXPECT_EQ(waits[i].wait.stream, reinterpret_cast<uint64_t>(computing));
    const double ms = static_cast<double>(waits[i].wait.resume_ns - waits[i].wait.stall_ns) / 1e6;
    EXPECT_GT(ms, 19.9);
    EXPECT_LT(ms, 200.0);
    EXPECT_GT(waits[i].wait.stall_ns, calls[i].call.start_ns - 2000000);
  }
}

// Bursts and pauses: what was waited for and is not recorded must not look as if nobody had waited.
TEST_F(Preload, PausesOfMarkingAreRecorded) {
  in_child([&] {
    setenv("POWERCCL_KERNEL_EVENTS", "none", 1);  // all pairs of events for waits
    void* comm = comm_of();
    void* event = new_event();
    const auto waits = [&](int count) {
      for (int i = 0; i < count; ++i) {
        compute(computing);
        all_reduce(comm, communicating);
        cuEventRecord(event, communicating);
        cuStreamWaitEvent(computing, event, 0);
      }
    };
    waits(1100);
    usleep(2200000);
    waits(3);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1103u);
  const auto pauses = file.of(POWERCCL_REC_PAUSE);
  ASSERT_EQ(pauses.size(), 1u);
  const uint64_t marked = pauses[0].pause.marked;
  EXPECT_EQ(pauses[0].pause.burst, 1u);
  EXPECT_EQ(pauses[0].pause.unmarked, 0u);
  EXPECT_GE(marked, 1024u);
  ASSERT_LT(marked, 1100u);
  EXPECT_GE(pauses[0].pause.time_ns, calls[marked].call.start_ns);
  EXPECT_LT(pauses[0].pause.time_ns, calls[1099].call.start_ns);
  const auto waits = file.of(POWERCCL_REC_WAIT);
  ASSERT_EQ(waits.size(), marked + 3);
  for (size_t i = 0; i < waits.size(); ++i) EXPECT_EQ(waits[i].wait.burst, i < marked ? 1u : 2u);
  EXPECT_EQ(waits[marked].wait.call_id, calls[1100].call.call_id);
}

TEST_F(Preload, CallsInAComputingStreamAreWaitsThemselves) {
  in_child([&] {
    void* comm = comm_of();
    compute(computing, 2);
    all_reduce(comm, computing);
    all_reduce(comm, communicating);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto waits = file.of(POWERCCL_REC_WAIT);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].wait.call_id, file.of(POWERCCL_REC_CALL)[0].call.call_id);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].kernel.gpu_start_ns, waits[0].wait.stall_ns);
  EXPECT_EQ(kernels[0].kernel.gpu_stop_ns, waits[0].wait.resume_ns);
}

TEST_F(Preload, TheDefaultStreamIsAStreamLikeOthers) {
  in_child([&] {
    void* comm = comm_of();
    void* event = new_event();
    compute(nullptr, 2);
    all_reduce(comm, communicating);
    cuEventRecord(event, communicating);
    cuStreamWaitEvent(nullptr, event, 0);
    all_reduce(comm, nullptr);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  const auto waits = file.of(POWERCCL_REC_WAIT);
  ASSERT_EQ(waits.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(waits[i].wait.call_id, calls[i].call.call_id);
    EXPECT_EQ(waits[i].wait.stream, 0u);
  }
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

TEST_F(Preload, CapturedCallsHaveNoTimes) {
  in_child([&] {
    void* comm = comm_of();
    void* event = new_event();
    compute(computing, 2);
    fake_set_capturing(computing);
    const int before = fake_events();
    all_reduce(comm, computing);
    EXPECT_EQ(fake_events(), before);
    cuEventRecord(event, computing);
    fake_set_capturing(nullptr);
    cuStreamWaitEvent(communicating, event, 0);
    EXPECT_EQ(fake_events(), before + 1);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_CAPTURED, 0);
  EXPECT_TRUE(file.of(POWERCCL_REC_KERNEL).empty());
  EXPECT_TRUE(file.of(POWERCCL_REC_WAIT).empty());
}

TEST_F(Preload, ResultsAndErrnoAreTheLibrarys) {
  in_child([&] {
    void* comm = comm_of();
    void* event = new_event();
    compute(computing, 2);
    fake_set_result(3);
    errno = 77;
    EXPECT_EQ(all_reduce(comm, computing), 3);
    EXPECT_EQ(errno, 77);
    fake_set_result(0);
    all_reduce(comm, communicating);
    cuEventRecord(event, communicating);
    fake_set_wait(0, 400);
    EXPECT_EQ(cuStreamWaitEvent(computing, event, 0), 400);
    EXPECT_EQ(errno, 77);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 2u);
  EXPECT_EQ(file.of(POWERCCL_REC_KERNEL).size(), 1u);  // not the failed one's
  EXPECT_TRUE(file.of(POWERCCL_REC_WAIT).empty());
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
      use_policy_table(folder);
      void* comm = comm_of();
      all_reduce(comm, communicating, 4 << 20);
      usleep(20000);
      EXPECT_EQ(give_up(comm), 0);
      usleep(400000);  // the job's end gives all back
    });
    const auto clocks = only_trace().of(POWERCCL_REC_CLOCK);
    ASSERT_EQ(clocks.size(), 2u);
    EXPECT_NE(clocks[0].clock.max_mhz, 0u);
    EXPECT_EQ(clocks[1].clock.max_mhz, 0u);
    EXPECT_LT(clocks[1].clock.asked_ns - clocks[0].clock.asked_ns, 300'000'000u);
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

TEST_F(Preload, RanksOfOneProcessHaveTheirOwnTraces) {
  in_child([&] {
    void* comms[2] = {};
    const int devices[] = {0, 1};
    EXPECT_EQ(ncclCommInitAll(comms, 2, devices), 0);
    ncclGroupStart();
    all_reduce(comms[0], communicating);
    all_reduce(comms[1], other);
    ncclGroupEnd();
    for (void* comm : comms) ncclCommDestroy(comm);
  });
  const auto traces = folder.traces();
  ASSERT_EQ(traces.size(), 2u);
  uint64_t id = 0;
  for (const auto& path : traces) {
    const TraceFile file = read_trace(path);
    EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 1u);
    EXPECT_EQ(file.of(POWERCCL_REC_KERNEL).size(), 1u);
    const uint64_t its = file.of(POWERCCL_REC_COMM)[0].comm_up.comm_id;
    EXPECT_TRUE(id == 0 || id == its);
    id = its;
  }
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

TEST_F(Preload, WithoutARunFolderNothingIsPutIntoStreams) {
  in_child([&] {
    unsetenv("POWERCCL_RUN_FOLDER");
    void* comm = comm_of();
    void* event = new_event();
    compute(computing, 2);
    all_reduce(comm, computing);
    EXPECT_EQ(fake_events(), 0);
    cuEventRecord(event, computing);
    cuStreamWaitEvent(communicating, event, 0);
    EXPECT_EQ(fake_events(), 1);
    EXPECT_EQ(ncclCommDestroy(comm), 0);
  });
  EXPECT_TRUE(folder.traces().empty());
}

TEST_F(Preload, NothingIsPutIntoStreamsOnceAContextGoes) {
  in_child([&] {
    void* comm = comm_of();
    all_reduce(comm, communicating);
    EXPECT_EQ(cuCtxDestroy_v2(nullptr), 0);
    const int events = fake_events();
    all_reduce(comm, communicating);
    EXPECT_EQ(fake_events(), events);
    ncclCommDestroy(comm);
  });
  EXPECT_EQ(only_trace().of(POWERCCL_REC_CALL).size(), 2u);
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
