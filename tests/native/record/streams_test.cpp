// SPDX-License-Identifier: Apache-2.0
#include "record/streams.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace powerccl {
namespace {

CallOfStream call(uint64_t number) {
  return {nullptr, 0, make_handle(HandleKind::kCall, 0, number)};
}

class StreamsTest : public testing::Test {
 protected:
  void compute(uint64_t stream, int kernels = 1) {
    for (int i = 0; i < kernels; ++i) streams->launched(stream);
  }
  // The number of the call waited for; negative if that stalls no computation.
  int64_t wait(uint64_t stream, uint64_t event) {
    bool stalls = false;
    const auto number = static_cast<int64_t>(serial_of(streams->waits(stream, event, &stalls).call));
    return stalls ? number : -number;
  }
  std::unique_ptr<Streams> streams = std::make_unique<Streams>();
};

TEST_F(StreamsTest, DefaultStreamsAreOnePerGpuOrThread) {
  EXPECT_EQ(Streams::key(0, 0, 1), Streams::key(1, 0, 2));
  EXPECT_NE(Streams::key(0, 0, 1), Streams::key(0, 1, 1));
  EXPECT_NE(Streams::key(2, 0, 1), Streams::key(2, 0, 2));
  EXPECT_NE(Streams::key(2, 0, 1), Streams::key(2, 1, 1));
  EXPECT_NE(Streams::key(2, 0, 1), Streams::key(0, 0, 1));
  EXPECT_EQ(Streams::key(0x7f0000001000, 3, 1), 0x7f0000001000u);
}

TEST_F(StreamsTest, AnEventStandsForTheCallBeforeIt) {
  compute(1);
  streams->recorded(100, 2);
  EXPECT_EQ(wait(1, 100), 0);
  streams->called(2, call(1));
  EXPECT_EQ(wait(1, 100), 0) << "recorded before the call";
  streams->recorded(100, 2);
  streams->called(2, call(2));
  EXPECT_EQ(wait(1, 100), 1);
  EXPECT_EQ(wait(1, 100), -1) << "the second time";
  streams->recorded(100, 2);
  EXPECT_EQ(wait(1, 100), 2);
  EXPECT_EQ(wait(2, 100), 0) << "a stream does not wait for itself";
  streams->event_gone(100);
  EXPECT_EQ(wait(3, 100), 0);
}

TEST_F(StreamsTest, OnlyStreamsWithAGoodPartOfTheKernelsCompute) {
  compute(1, 80);
  compute(2, 9);
  compute(3, 10);
  EXPECT_TRUE(streams->computes(1));
  EXPECT_FALSE(streams->computes(2));
  EXPECT_TRUE(streams->computes(3));
  EXPECT_FALSE(streams->computes(4));
}

TEST_F(StreamsTest, ManyOfTheSameCopyDoNotCompute) {
  for (uint64_t kernel = 1; kernel <= 20; ++kernel) streams->launched(1, 1, Streams::kind_of(kernel * 4096));
  for (int i = 0; i < 15; ++i) streams->launched(2, 1, Streams::kind_of(4096));
  for (uint64_t kernel = 1; kernel <= 8; ++kernel) streams->launched(3, 1, Streams::kind_of(kernel * 4096));
  EXPECT_TRUE(streams->computes(1));
  EXPECT_FALSE(streams->computes(2));
  EXPECT_TRUE(streams->computes(3));
}

TEST_F(StreamsTest, AJobOfOneKernelComputes) {
  for (int i = 0; i < 15; ++i) streams->launched(1, 1, Streams::kind_of(4096));
  EXPECT_TRUE(streams->computes(1));
}

TEST_F(StreamsTest, WhatIsWaitedForIsHandedOnUntilComputedUpon) {
  compute(1, 100);
  streams->called(2, call(1));
  streams->recorded(100, 2);
  EXPECT_EQ(wait(3, 100), -1);
  compute(3, Streams::kFewKernels);
  streams->recorded(101, 3);
  EXPECT_EQ(wait(1, 101), 1);
  compute(3);
  streams->recorded(101, 3);
  EXPECT_EQ(wait(4, 101), 0);
}

TEST_F(StreamsTest, AStreamThatGoesTakesItsCallAlong) {
  streams->called(2, call(1));
  streams->stream_gone(2);
  streams->recorded(100, 2);
  EXPECT_EQ(wait(1, 100), 0);
}

TEST_F(StreamsTest, EventsWithoutRoomCostTheOldest) {
  compute(1);
  streams->called(2, call(1));
  const uint64_t many = 10 * Streams::kEvents;
  for (uint64_t event = 1; event <= many; ++event) streams->recorded(event * 64, 2);
  EXPECT_EQ(wait(1, many * 64), 1);
  EXPECT_EQ(wait(3, 64), 0);
}

TEST_F(StreamsTest, StreamsWithoutRoomAreLeftAlone) {
  for (uint64_t stream = 1; stream <= 10 * uint64_t{Streams::kStreams}; ++stream) streams->launched(stream * 4096);
  streams->called(99 * uint64_t{Streams::kStreams} * 4096, call(1));  // no matter, as long as nothing breaks
  for (uint64_t stream = 1; stream <= 10 * uint64_t{Streams::kStreams}; ++stream) streams->stream_gone(stream * 4096);
  streams->called(4096, call(2));
  EXPECT_EQ(serial_of(streams->last_call(4096).call), 2u);
}

TEST_F(StreamsTest, ThreadsMayDoAllOfItAtOnce) {
  std::vector<std::thread> threads;
  for (uint64_t own = 1; own <= 4; ++own) {
    threads.emplace_back([&, own] {
      for (uint64_t i = 1; i < 20000; ++i) {
        const uint64_t stream = 4096 * (1 + (i * own) % 7);
        streams->launched(stream);
        streams->called(stream, call(i));
        streams->recorded(64 * (1 + i % 11), stream);
        bool stalls = false;
        streams->waits(4096 * (1 + i % 5), 64 * (1 + i % 13), &stalls);
        if (i % 97 == 0) streams->stream_gone(stream);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t stream = 1; stream <= 7; ++stream) {
    EXPECT_LT(serial_of(streams->last_call(4096 * stream).call), 20000u);
  }
}

}  // namespace
}  // namespace powerccl
