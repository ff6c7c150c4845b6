// SPDX-License-Identifier: Apache-2.0
// The clock thread with a lease client: a daemon's troubles never reach those who wish, and end when it is back.
#include <memory>

#include "clock/clock_actuator.h"
#include "lease_fixture.h"
#include "record/trace_writer.h"

namespace powerccl::test {
namespace {

class LeasedActuator : public LeaseTest {
 protected:
  void SetUp() override {
    LeaseTest::SetUp();
    powerccl_trace_header header = {};
    ASSERT_EQ(trace.open((folder / "a.trace").c_str(), header, 16u << 20), 0);
  }
  void TearDown() override {
    actuator->stop(20 * kSecond);
    LeaseTest::TearDown();
  }
  void start() {
    ASSERT_EQ(open(), 0);
    ASSERT_TRUE(actuator->start(&lease, per_call->policy(), &trace, false));
  }
  // With a daemon, and 480 MHz for call 1.
  void start_and_hold() {
    daemon.start();
    start();
    per_call->hold(480, 1);
    ASSERT_TRUE(reaches(480));
  }
  bool reaches(uint32_t mhz) {
    return eventually([&] { return daemon.now_mhz == mhz; });
  }
  TraceFile written() {
    trace.flush();
    return read_trace(folder / "a.trace");
  }
  std::vector<powerccl_trace_record> clocks() { return written().of(POWERCCL_REC_CLOCK); }

  TraceWriter trace;
  std::unique_ptr<ClockActuator> actuator = std::make_unique<ClockActuator>();
  std::unique_ptr<PerCallClock> per_call = std::make_unique<PerCallClock>(actuator.get());
};

TEST_F(LeasedActuator, WhatTheRateLimitWouldMakeWaitIsKeptBack) {
  daemon.interval_ms = 300;
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  per_call->release(1, 1);
  ASSERT_TRUE(reaches(0));
  per_call->hold(510, 2);
  usleep(50000);
  per_call->release(1, 2);  // over before it could be set: the daemon never hears of it
  per_call->hold(540, 3);
  usleep(50000);
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480, 0}));
  ASSERT_TRUE(reaches(540));
  per_call->release(1, 3);
  ASSERT_TRUE(reaches(0)) << "the default never waits";
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480, 0, 540, 0}));
}

TEST_F(LeasedActuator, AfterARestartTheNewestWishIsCarriedOutAgain) {
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  daemon.stop();
  usleep(1500000);
  per_call->hold(510, 2);
  ASSERT_TRUE(eventually([&] { return !clocks().empty() && clocks().back().clock.result == kClockNotNow; }));
  const size_t before = clocks().size();
  usleep(300000);
  EXPECT_EQ(clocks().size(), before);  // one wish, one record
  daemon.start();
  ASSERT_TRUE(reaches(510));
  EXPECT_FALSE(actuator->failed());
  per_call->release(2, 2);
  ASSERT_TRUE(reaches(0));
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480, 510, 0}));
  EXPECT_EQ(written().notes(), "clock lease lost: GPU at its default clock\n");
  const std::string text = said();
  EXPECT_EQ(text.find("powerccl: cannot set the clock of GPU-1 at present: powerccld closed the connection\nhint: "),
            0u)
      << text;
  EXPECT_NE(text.find("powerccl: the clock of GPU-1 can be set again\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

// What such a policy learns of a clock would be of the default one.
TEST_F(LeasedActuator, APolicyIsToldWhatIsNotInForce) {
  class Always final : public ClockPolicy {
   public:
    Wanted wanted(uint64_t now_ns) override { return {mhz, now_ns + 10000000u, 0}; }
    void withheld() override { ++times_withheld; }
    std::atomic<uint32_t> mhz{480}, times_withheld{0};
  } policy;
  daemon.start();
  ASSERT_EQ(open(), 0);
  ASSERT_TRUE(actuator->start(&lease, &policy, &trace, false));
  ASSERT_TRUE(reaches(480));
  usleep(50000);
  const uint32_t at_first = policy.times_withheld;  // before there is a connection
  usleep(100000);
  EXPECT_EQ(policy.times_withheld, at_first);
  daemon.stop();
  ASSERT_TRUE(eventually([&] { return policy.times_withheld > at_first + 3; }));
  policy.mhz = 0;
  usleep(100000);
  const uint32_t then = policy.times_withheld;
  usleep(100000);
  EXPECT_EQ(policy.times_withheld, then) << "the default clock is always in force";
  policy.mhz = 480;
  daemon.start();
  ASSERT_TRUE(reaches(480));
  usleep(50000);
  const uint32_t again = policy.times_withheld;
  usleep(100000);
  EXPECT_EQ(policy.times_withheld, again);
  policy.mhz = 0;
  EXPECT_TRUE(actuator->stop(5 * kSecond));
}

TEST_F(LeasedActuator, AQuickRestartIsNoticedWithoutAWish) {
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  daemon.stop();
  daemon.start();
  ASSERT_TRUE(reaches(480));
  EXPECT_EQ(daemon.hellos, 2);
}

TEST_F(LeasedActuator, WhatIsReleasedMeanwhileIsNotSetAgain) {
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  daemon.stop();
  per_call->release(1, 1);
  daemon.start();
  ASSERT_TRUE(eventually([&] { return daemon.acquires == 2; }));
  usleep(50000);
  EXPECT_EQ(daemon.now_mhz, 0u);
  EXPECT_TRUE(actuator->stop(5 * kSecond));
}

TEST_F(LeasedActuator, TheEndIsNotHeldUp) {
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  daemon.lease_manners = Manners::kSilent;
  const uint64_t begin = monotonic_ns();
  actuator->stop(kSecond / 10);
  EXPECT_LT(monotonic_ns() - begin, kSecond);
  // The daemon undoes what it does not answer for: the connection has ended.
  EXPECT_TRUE(actuator->stop(20 * kSecond));
  EXPECT_TRUE(reaches(0));
}

TEST_F(LeasedActuator, ARevokedLeaseDisarms) {
  ASSERT_NO_FATAL_FAILURE(start_and_hold());
  daemon.end(POWERCCL_LEASE_REVOKED);
  ASSERT_TRUE(eventually([&] { return actuator->failed(); }));
  per_call->hold(510, 2);
  EXPECT_TRUE(actuator->stop(5 * kSecond));
  const std::string text = said();
  EXPECT_EQ(text.find("powerccl: the clock cannot be set (code -12: an administrator revoked the lease)"), 0u) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480}));
}

}  // namespace
}  // namespace powerccl::test
