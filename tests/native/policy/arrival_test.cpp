// SPDX-License-Identifier: Apache-2.0
#include "policy/arrival.h"

#include <gtest/gtest.h>

#include <vector>

namespace powerccl {
namespace {

// A driver whose clock is there so long after the call; reading it takes some time, and each tenth read much longer.
struct Driver {
  uint64_t transition_ns, read_ns, held_up_ns = 0;
  uint64_t reads = 0;
  uint64_t now_ns = 1000000000u;

  Arrival::Seen change(Arrival* arrival) {
    const uint64_t end_ns = now_ns;
    arrival->watch(end_ns);
    Arrival::Seen seen;
    while (arrival->watching()) {
      if (now_ns < arrival->look_at_ns()) now_ns = arrival->look_at_ns();
      const uint64_t begin_ns = now_ns;
      now_ns += ++reads % 10 == 0 ? read_ns + held_up_ns : read_ns;
      seen = arrival->looked(begin_ns, now_ns, now_ns >= end_ns + transition_ns);
    }
    now_ns += 100000000u;
    return seen;
  }
};

double middle(const Arrival::Seen& seen) {
  return 0.5 * static_cast<double>(seen.least_ns + seen.most_ns);
}

TEST(Arrival, IsKnownToAFewHundredthsFromFewLooks) {
  for (const uint64_t transition_us : {100u, 400u, 5000u, 20000u, 100000u}) {
    Driver driver{transition_us * 1000u, 2000u};
    Arrival arrival;
    std::vector<Arrival::Seen> seen;
    for (int i = 0; i < 6; ++i) seen.push_back(driver.change(&arrival));
    EXPECT_LE(driver.reads, 6 * 20u) << transition_us;
    double sum = 0;
    int precise = 0;
    for (const Arrival::Seen& each : seen) {
      if (each.precise) sum += middle(each), ++precise;
    }
    ASSERT_GE(precise, 3) << transition_us;
    EXPECT_NEAR(sum / precise, static_cast<double>(driver.transition_ns),
                0.03 * static_cast<double>(driver.transition_ns) + 20000)
        << transition_us;
  }
}

TEST(Arrival, OfWhatIsThereAtOnceIsPrecise) {
  Driver driver{1000, 2000};
  Arrival arrival;
  const Arrival::Seen seen = driver.change(&arrival);
  EXPECT_TRUE(seen.precise);
  EXPECT_LE(seen.most_ns, 40000u);
}

// A read that was held up says when the clock had arrived at the latest, which may be long after it had.
TEST(Arrival, BehindAReadThatWasHeldUpIsNotPrecise) {
  Driver driver{20000000u, 2000u, 18000000u};
  Arrival arrival;
  int precise = 0;
  for (int i = 0; i < 12; ++i) {
    const Arrival::Seen seen = driver.change(&arrival);
    EXPECT_LE(seen.least_ns, 20000000u);
    EXPECT_GE(seen.most_ns, 20000000u);
    if (!seen.precise) continue;
    ++precise;
    EXPECT_NEAR(middle(seen), 20e6, 1.5e6);
  }
  EXPECT_GE(precise, 3);
}

// A clock comes down to another by itself, and that would be taken for the change.
TEST(Arrival, IsSeenFarBelowAlone) {
  EXPECT_FALSE(Arrival::visible(1590, 1230)) << "a GPU of 1590 MHz is at 1245 while its power is limited";
  EXPECT_FALSE(Arrival::visible(1350, 1170)) << "so is one that may have 1350";
  EXPECT_TRUE(Arrival::visible(1590, 900));
  EXPECT_TRUE(Arrival::visible(1230, 555));
  EXPECT_FALSE(Arrival::visible(900, 1230)) << "it rises";
}

TEST(Arrival, IsAtTheClockAskedFor) {
  EXPECT_TRUE(Arrival::there(555, 555));
  EXPECT_TRUE(Arrival::there(585, 555)) << "devices round";
  EXPECT_FALSE(Arrival::there(1230, 555));
  EXPECT_FALSE(Arrival::there(300, 555)) << "a GPU that sleeps";
}

// Who had been misled looks too late, and finds back.
TEST(Arrival, IsFoundWhereItTakesLessThanBefore) {
  Arrival arrival;
  Driver slow{50000000u, 2000u};
  for (int i = 0; i < 3; ++i) slow.change(&arrival);
  Driver quick{5000000u, 2000u};
  Arrival::Seen seen;
  for (int i = 0; i < 12; ++i) seen = quick.change(&arrival);
  EXPECT_TRUE(seen.precise);
  EXPECT_NEAR(middle(seen), 5e6, 0.4e6);
}

TEST(Arrival, IsGivenUpWhereItNeverComes) {
  Driver driver{uint64_t{1} << 60, 2000u};
  Arrival arrival;
  const Arrival::Seen seen = driver.change(&arrival);
  EXPECT_EQ(seen.most_ns, 0u);
  EXPECT_LE(driver.reads, 60u);
}

}  // namespace
}  // namespace powerccl
