// SPDX-License-Identifier: Apache-2.0
// Marks in streams: where computation waits for a call, and where nothing may be put.
#include <cerrno>
#include <chrono>

#include "preload_fixture.h"

namespace powerccl::test {
namespace {

// Computation that waits for a call, again and again.
class Waits : public Preload {
 protected:
  void wait_for_calls(void* comm, void* event, int count) const {
    for (int i = 0; i < count; ++i) {
      compute(computing);
      all_reduce(comm, communicating);
      cuEventRecord(event, communicating);
      cuStreamWaitEvent(computing, event, 0);
    }
  }
};

TEST_F(Preload, WhereAComputingStreamWaitsIsMarked) {
  const auto begun = std::chrono::steady_clock::now();
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
  const double whole_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
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
    EXPECT_LT(ms, whole_ms);
    EXPECT_GT(waits[i].wait.stall_ns, calls[i].call.start_ns - 2000000);
  }
}

// Bursts and pauses: what was waited for and is not recorded must not look as if nobody had waited.
TEST_F(Waits, PausesOfMarkingAreRecorded) {
  in_child([&] {
    setenv("POWERCCL_KERNEL_EVENTS", "none", 1);  // all pairs of events for waits
    void* comm = comm_of();
    void* event = new_event();
    wait_for_calls(comm, event, 1100);
    usleep(2200000);
    // On a host that is busy marks take longer, and so does the pause.
    for (int events = fake_events(); fake_events() - events < 2;) {
      events = fake_events();
      usleep(100000);
      wait_for_calls(comm, event, 1);
    }
    wait_for_calls(comm, event, 2);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_GE(calls.size(), 1103u);
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
  EXPECT_EQ(waits[marked].wait.call_id, calls[calls.size() - 3].call.call_id);
}

// A mark takes a thousandth of the job's thread at most, and the header tells what all our work took.
TEST_F(Waits, MarksThatCostTheHostMuchAreFew) {
  in_child([&] {
    setenv("POWERCCL_KERNEL_EVENTS", "none", 1);
    void* comm = comm_of();
    void* event = new_event();
    fake_set_record_us(30);
    wait_for_calls(comm, event, 1200);
    usleep(2200000);
    wait_for_calls(comm, event, 3);
    ncclCommDestroy(comm);
  });
  const TraceFile file = only_trace();
  EXPECT_EQ(file.of(POWERCCL_REC_CALL).size(), 1203u);
  const size_t waits = file.of(POWERCCL_REC_WAIT).size();
  EXPECT_GE(waits, 1024u);
  EXPECT_LT(waits, 1200u);
  EXPECT_GT(file.header.own_ns[0], 0u);             // calls
  EXPECT_GT(file.header.own_ns[1], waits * 60000);  // marks, two events each
  EXPECT_GT(file.header.own_ns[2], 0u);             // launches
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

}  // namespace
}  // namespace powerccl::test
