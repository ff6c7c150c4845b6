// SPDX-License-Identifier: Apache-2.0
// What a clock thread decides, with a client whose time stands still unless the test moves it.
#include "clock/clock_follower.h"

#include <gtest/gtest.h>

#include <vector>

namespace powerccl::test {
namespace {

constexpr uint64_t kMs = 1000000u;

struct Client final : ClockClient {
  uint64_t now = 1000 * kMs, takes = 2 * kMs, grants = 1;
  LoweringLimit limit;
  uint64_t interval = 0;
  uint32_t mhz = 0;
  std::vector<uint32_t> sets;

  uint64_t now_ns() const override { return now; }
  int set(uint32_t wanted) override {
    if (grants == 0) return kClockNotNow;
    limit.asked(wanted, now);
    now += takes;
    mhz = wanted;
    sets.push_back(wanted);
    return 0;
  }
  int reset() override { return set(0); }
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* to) override {
    to->mhz = mhz;
    return 0;
  }
  uint64_t grant() const override { return grants; }
  uint64_t delay_ns(uint32_t wanted) const override { return limit.delay_ns(wanted, now, interval); }
};

struct Policy final : ClockPolicy {
  uint32_t mhz = 0;
  uint64_t until = 3000 * kMs;
  int asked = 0, times_withheld = 0;
  Wanted wanted(uint64_t) override {
    ++asked;
    return {mhz, until, 7};
  }
  void withheld() override { ++times_withheld; }
};

struct Records final : Trace {
  std::vector<powerccl_trace_record> all;
  bool append(const powerccl_trace_record& record) override {
    all.push_back(record);
    return true;
  }
};

class Follower : public testing::Test {
 protected:
  void SetUp() override { follower.begin(&client, &policy, &records, false); }

  Client client;
  Policy policy;
  Records records;
  ClockFollower follower;
};

TEST_F(Follower, ASetIsReadBackTenMillisecondsAfterTheCall) {
  policy.mhz = 480;
  EXPECT_EQ(follower.follow(), 10 * kMs);
  EXPECT_TRUE(records.all.empty());
  client.now += 10 * kMs;
  client.mhz = 495;
  EXPECT_EQ(follower.follow(), policy.until - client.now);
  ASSERT_EQ(records.all.size(), 1u);
  const auto& clock = records.all[0].clock;
  EXPECT_EQ(clock.read_back_mhz, 495u);
  EXPECT_EQ(clock.call_id, 7u);
  EXPECT_EQ(clock.begin_ns, 1000 * kMs);
  EXPECT_EQ(clock.end_ns, 1002 * kMs);
}

TEST_F(Follower, ALowerClockWaitsForItsTurnAndAHigherOneDoesNot) {
  client.interval = 500 * kMs;
  policy.mhz = 480;
  follower.follow();
  policy.mhz = 600;
  follower.follow();
  policy.mhz = 500;
  EXPECT_EQ(follower.follow(), 496 * kMs) << "two calls of 2 ms after the first";
  client.now += 496 * kMs;
  follower.follow();
  EXPECT_EQ(client.sets, (std::vector<uint32_t>{480, 600, 500}));
  follower.reset(false);
  EXPECT_TRUE(follower.at_default());
}

TEST_F(Follower, WithoutAGrantAWishIsTriedOnceAndTheNextGrantCarriesItOut) {
  policy.mhz = 480;
  follower.follow();
  client.grants = 0;
  EXPECT_EQ(follower.follow(), 0u) << "the policy is asked again";
  EXPECT_TRUE(follower.at_default());
  follower.follow();
  follower.follow();
  EXPECT_EQ(policy.times_withheld, 2);
  EXPECT_EQ(follower.switches(), 1u);
  client.grants = 2;
  EXPECT_EQ(follower.follow(), 0u);
  follower.follow();
  EXPECT_EQ(client.sets, (std::vector<uint32_t>{480, 480}));
  ASSERT_EQ(records.all.size(), 4u);
  EXPECT_EQ(records.all[0].kind, POWERCCL_REC_NOTE);
  EXPECT_EQ(records.all[1].kind, POWERCCL_REC_CLOCK);
  EXPECT_EQ(records.all[2].clock.result, kClockNotNow);
  EXPECT_EQ(records.all[3].clock.result, 0);
}

}  // namespace
}  // namespace powerccl::test
