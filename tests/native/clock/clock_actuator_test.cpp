// SPDX-License-Identifier: Apache-2.0
#include "clock/clock_actuator.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <thread>

#include "../record/trace_reader.h"
#include "base/log.h"
#include "record/trace_writer.h"

namespace powerccl::test {
namespace {

constexpr uint64_t kSecond = 1000000000u;

// A GPU whose driver takes its time, and fails when told to.
struct Gpu final : ClockClient {
  std::mutex mutex;
  std::vector<uint32_t> done;  // clocks set; 0 for resets
  uint32_t now = 0;
  std::atomic<int> set_result{0}, reset_result{0};
  std::atomic<bool> hangs{false};
  std::atomic<size_t> asked{0};

  bool dry() const override { return false; }
  int set(uint32_t mhz) override { return carry_out(mhz); }
  int reset() override { return carry_out(0); }
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override {
    reading->mhz = clock();
    return 0;
  }
  const char* explain(int, const char** hint) override {
    *hint = "try again as root";
    return "no permission";
  }
  int carry_out(uint32_t mhz) {
    ++asked;
    while (hangs) usleep(200);
    std::lock_guard guard(mutex);
    const int result = mhz != 0 ? set_result.load() : reset_result.load();
    done.push_back(mhz);
    if (result == 0) now = mhz;
    return result;
  }
  uint32_t clock() {
    std::lock_guard guard(mutex);
    return now;
  }
  size_t calls() {
    std::lock_guard guard(mutex);
    return done.size();
  }
};

class Actuator : public testing::Test {
 protected:
  void SetUp() override {
    powerccl_trace_header header = {};
    ASSERT_EQ(trace.open((folder / "a.trace").c_str(), header, 16u << 20), 0);
  }
  void start() { ASSERT_TRUE(actuator->start(&gpu, per_call->policy(), &trace, false)); }
  bool reaches(uint32_t mhz) {
    for (int i = 0; i < 10000 && gpu.clock() != mhz; ++i) usleep(1000);
    return gpu.clock() == mhz;
  }
  bool hangs_in(size_t call) {
    for (int i = 0; i < 10000 && gpu.asked < call; ++i) usleep(1000);
    return gpu.asked == call && gpu.calls() == call - 1;
  }
  TraceFile written() {
    trace.flush();
    return read_trace(folder / "a.trace");
  }
  std::vector<powerccl_trace_record> clocks() { return written().of(POWERCCL_REC_CLOCK); }

  Folder folder;
  TraceWriter trace;
  Gpu gpu;
  std::unique_ptr<ClockActuator> actuator = std::make_unique<ClockActuator>();
  std::unique_ptr<PerCallClock> per_call = std::make_unique<PerCallClock>(actuator.get());
};

TEST_F(Actuator, SetsWhileHeldAndResetsAfter) {
  start();
  per_call->hold(480, 7);
  ASSERT_TRUE(reaches(480));
  per_call->release(1, 7);
  ASSERT_TRUE(reaches(0));
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  const auto records = clocks();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].clock.max_mhz, 480u);
  EXPECT_EQ(records[0].clock.min_mhz, 480u);
  EXPECT_EQ(records[0].clock.call_id, 7u);
  EXPECT_EQ(records[0].clock.read_back_mhz, 480u);
  EXPECT_EQ(records[0].flags & POWERCCL_FLAG_DRY, 0);
  EXPECT_LE(records[0].clock.asked_ns, records[0].clock.begin_ns);
  EXPECT_LE(records[0].clock.begin_ns, records[0].clock.end_ns);
  EXPECT_EQ(records[1].clock.max_mhz, 0u);
  EXPECT_EQ(records[1].clock.call_id, 7u);
}

TEST_F(Actuator, StaysWhileAnybodyHolds) {
  start();
  per_call->hold(480, 1);
  ASSERT_TRUE(reaches(480));
  per_call->hold(480, 2);
  per_call->release(1, 1);
  usleep(20000);
  EXPECT_EQ(gpu.clock(), 480u);
  per_call->release(1, 2);
  EXPECT_TRUE(reaches(0));
  actuator->stop(5 * kSecond);
  EXPECT_EQ(gpu.done, (std::vector<uint32_t>{480, 0}));
}

TEST_F(Actuator, TheNewestWishWinsAndTheOthersAreCounted) {
  start();
  per_call->hold(300, 1);
  ASSERT_TRUE(reaches(300));
  gpu.hangs = true;
  per_call->hold(310, 100);
  ASSERT_TRUE(hangs_in(2));
  for (uint32_t i = 0; i < 10; ++i) per_call->hold(400 + 10 * i, 2 + i);
  gpu.hangs = false;
  ASSERT_TRUE(reaches(490));
  per_call->release(12, 11);
  ASSERT_TRUE(reaches(0));
  actuator->stop(5 * kSecond);
  EXPECT_EQ(gpu.done, (std::vector<uint32_t>{300, 310, 490, 0}));
  EXPECT_EQ(clocks()[2].clock.coalesced, 9u);
  EXPECT_EQ(clocks()[2].clock.call_id, 11u);
}

TEST_F(Actuator, WhatIsOverBeforeItsTurnIsNotDone) {
  gpu.hangs = true;
  start();
  per_call->hold(480, 1);
  ASSERT_TRUE(hangs_in(1));
  for (uint64_t call = 2; call < 50; ++call) {
    per_call->hold(510, call);
    per_call->release(1, call);
  }
  per_call->release(1, 1);
  gpu.hangs = false;
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  EXPECT_EQ(gpu.done, (std::vector<uint32_t>{480, 0}));
}

TEST_F(Actuator, WishingDoesNotWaitForTheDriver) {
  gpu.hangs = true;
  start();
  per_call->hold(480, 1);
  ASSERT_TRUE(hangs_in(1));
  for (uint64_t call = 2; call < 1002; ++call) per_call->hold(480, call);
  per_call->release(1001, 1);
  gpu.hangs = false;  // never comes, if one of them waited
  EXPECT_TRUE(actuator->stop(5 * kSecond));
}

TEST_F(Actuator, RefusalIsSaidOnceAndUndone) {
  gpu.set_result = 4;
  int text[2];
  ASSERT_EQ(pipe(text), 0);
  log_to(text[1]);
  start();
  for (uint64_t call = 1; call < 20; ++call) {
    per_call->hold(480, call);
    usleep(500);
    per_call->release(1, call);
  }
  for (int i = 0; i < 5000 && !actuator->failed(); ++i) usleep(1000);
  EXPECT_TRUE(actuator->failed());
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  log_to(2);
  close(text[1]);
  char said[2048] = "";
  EXPECT_GT(read(text[0], said, sizeof(said) - 1), 0);
  close(text[0]);
  EXPECT_STREQ(
      said,
      "powerccl: the clock cannot be set (code 4: no permission); PowerCCL sets no more clocks in this process\n"
      "hint: try again as root\n");
  const auto records = clocks();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].clock.result, 4);
  EXPECT_EQ(records[1].clock.max_mhz, 0u);  // a failed set may have worked all the same
  EXPECT_EQ(written().notes(), "clock set failed: disarmed to observe\n");
}

TEST_F(Actuator, ARefusedResetIsTriedAgainAtTheEnd) {
  log_to(open("/dev/null", O_WRONLY));
  gpu.reset_result = 15;
  start();
  per_call->hold(480, 1);
  ASSERT_TRUE(reaches(480));
  per_call->release(1, 1);
  for (int i = 0; i < 5000 && gpu.calls() < 2; ++i) usleep(1000);
  EXPECT_FALSE(actuator->settle(5 * kSecond));
  gpu.reset_result = 0;
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  log_to(2);
  EXPECT_EQ(gpu.clock(), 0u);
}

TEST_F(Actuator, SettlingForgetsHoldsThatNobodyWillRelease) {
  start();
  per_call->hold(480, 1);
  per_call->hold_on();
  ASSERT_TRUE(reaches(480));
  const uint64_t asked_ns = monotonic_ns();
  EXPECT_TRUE(actuator->settle(5 * kSecond));
  EXPECT_EQ(gpu.clock(), 0u);
  ASSERT_EQ(clocks().size(), 2u);
  EXPECT_GE(clocks()[1].clock.asked_ns, asked_ns);
  EXPECT_LE(clocks()[1].clock.asked_ns, clocks()[1].clock.begin_ns);
  per_call->release(2, 1);  // late, and of no effect on those who come after
  per_call->hold(510, 2);
  ASSERT_TRUE(reaches(510));
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  EXPECT_EQ(gpu.clock(), 0u);
}

// Wants one clock until the communicators are gone.
class OneClock final : public ClockPolicy {
 public:
  void rest(uint64_t) override { resting_ = true; }
  Wanted wanted(uint64_t now_ns) override {
    return resting_ ? Wanted{0, now_ns + kFarNs} : Wanted{480, now_ns + kFarNs, 7};
  }

 private:
  std::atomic<bool> resting_{false};
};

// Nobody releases what such a policy has set: whoever settles asks for the reset, and says when.
TEST_F(Actuator, WhatAPolicySetIsResetAtTheEnd) {
  OneClock policy;
  ASSERT_TRUE(actuator->start(&gpu, &policy, &trace, false));
  ASSERT_TRUE(reaches(480));
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  EXPECT_EQ(gpu.clock(), 0u);
  ASSERT_EQ(clocks().size(), 2u);
  EXPECT_EQ(clocks()[0].clock.call_id, 7u);
  EXPECT_EQ(clocks()[1].clock.call_id, 0u);
  EXPECT_EQ(clocks()[1].clock.max_mhz, 0u);
  EXPECT_GT(clocks()[1].clock.asked_ns, 0u);
  EXPECT_LE(clocks()[1].clock.asked_ns, clocks()[1].clock.begin_ns);
}

TEST_F(Actuator, ADriverThatHangsDoesNotHangTheEnd) {
  gpu.hangs = true;
  start();
  per_call->hold(480, 1);
  ASSERT_TRUE(hangs_in(1));
  EXPECT_FALSE(actuator->stop(kSecond / 10));
  gpu.hangs = false;
  // The thread that was left to itself undoes what it did, in its own time.
  EXPECT_TRUE(actuator->stop(20 * kSecond));
  EXPECT_EQ(gpu.done, (std::vector<uint32_t>{480, 0}));
}

TEST_F(Actuator, ThreadsWishAndReleaseAtOnce) {
  start();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < 5000; ++i) {
        per_call->hold(static_cast<uint32_t>(400 + t), t * 5000 + i);
        per_call->release(1, t * 5000 + i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(actuator->stop(10 * kSecond));
  EXPECT_EQ(gpu.clock(), 0u);
  for (const auto& record : clocks()) {
    EXPECT_TRUE(record.clock.max_mhz == 0 || (record.clock.max_mhz >= 400 && record.clock.max_mhz < 404));
  }
}

}  // namespace
}  // namespace powerccl::test
