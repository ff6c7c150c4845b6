// SPDX-License-Identifier: Apache-2.0
#include "daemon/lease_table.h"

#include <gtest/gtest.h>

#include "machine.h"

namespace powerccl::daemon {
namespace {

TEST(LeaseTable, SetsReadsBackAndPutsBack) {
  Machine machine(2);
  const uint64_t lease = machine.acquire(1, 0);
  ASSERT_NE(lease, 0u);
  EXPECT_EQ(machine.heard.back().answer.min_mhz, 300u);
  EXPECT_EQ(machine.heard.back().answer.max_mhz, 1590u);
  const uint64_t set = machine.set(1, lease, 600);
  EXPECT_EQ(machine.answer_to(set), nullptr);  // not before the driver has done it
  machine.work_all();
  ASSERT_EQ(machine.status_of(set), 0);
  EXPECT_EQ(machine.answer_to(set)->answer.outcome.now_mhz, 600u);
  EXPECT_EQ(machine.clock_mhz[0], 600u);
  EXPECT_EQ(machine.marks.count("GPU-0"), 1u);
  const uint64_t reset = machine.set(1, lease, 0);  // at once, whatever the rate limit
  machine.work_all();
  EXPECT_EQ(machine.status_of(reset), 0);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_EQ(machine.marks.count("GPU-0"), 1u) << "kept until the lease ends";
  machine.release(1, lease);
  EXPECT_TRUE(machine.marks.empty());
  EXPECT_FALSE(machine.unmarked_set);
  EXPECT_TRUE(machine.table.at_rest());
}

TEST(LeaseTable, OneWriterADevice) {
  Machine machine(2);
  ASSERT_NE(machine.acquire(1, 0), 0u);
  EXPECT_EQ(machine.acquire(2, 0), 0u);
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_HELD);
  EXPECT_EQ(machine.heard.back().answer.holder_pid, 1u);
  EXPECT_EQ(machine.heard.back().answer.holder_uid, 1000u);
  EXPECT_NE(machine.acquire(2, 1), 0u);
  EXPECT_NE(machine.acquire(1, 0), 0u) << "asked for again by who has it";
}

TEST(LeaseTable, OneUserMayShareADevice) {
  Machine machine(1);
  ASSERT_NE(machine.acquire(1, 0, true), 0u);
  EXPECT_NE(machine.acquire(2, 0, true), 0u);
  EXPECT_EQ(machine.heard.back().answer.flags, static_cast<uint32_t>(POWERCCL_LEASE_SHARED));
  EXPECT_EQ(machine.acquire(3, 0, true, 1001), 0u) << "another user";
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_HELD);
  EXPECT_EQ(machine.acquire(4, 0, false), 0u) << "one that wants it alone";
  EXPECT_EQ(machine.table.view(0).leases, 2u);
}

TEST(LeaseTable, OneWhoDoesNotShareIsNotJoined) {
  Machine machine(1);
  ASSERT_NE(machine.acquire(1, 0, false), 0u);
  EXPECT_EQ(machine.acquire(2, 0, true), 0u);
}

TEST(LeaseTable, SharersGetTheHighestWish) {
  Machine machine(1);
  const uint64_t a = machine.acquire(1, 0, true), b = machine.acquire(2, 0, true);
  const uint64_t low = machine.set(1, a, 600);  // and 2 computes at usual
  EXPECT_EQ(machine.status_of(low), 0);
  EXPECT_EQ(machine.answer_to(low)->answer.max_mhz, 0u);
  EXPECT_EQ(machine.answer_to(low)->answer.flags, static_cast<uint32_t>(POWERCCL_LEASE_SHARED));
  EXPECT_TRUE(machine.jobs.empty());
  const uint64_t both = machine.set_done(2, b, 750);
  EXPECT_EQ(machine.clock_mhz[0], 750u);
  EXPECT_EQ(machine.answer_to(both)->answer.flags, 0u);
  machine.set(1, a, 0);  // 1 computes again
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_FALSE(machine.unmarked_set);
}

TEST(LeaseTable, AWishThatIsSharedDoesNotWaitForTheRateLimit) {
  Machine machine(1, 20 * kMs);
  const uint64_t a = machine.acquire(1, 0, true), b = machine.acquire(2, 0, true);
  machine.set(1, a, 600);
  machine.set_done(2, b, 600);
  machine.set_done(1, a, 0);
  const uint64_t early = machine.set(1, a, 600);
  EXPECT_EQ(machine.status_of(early), 0) << "answered before it is carried out";
  EXPECT_EQ(machine.answer_to(early)->answer.max_mhz, 0u);
  machine.pass(21 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 600u);
  ASSERT_EQ(machine.heard.back().type, POWERCCL_LEASE_SETTLED) << "and told when it is";
  EXPECT_EQ(machine.heard.back().answer.lease, a);
  EXPECT_EQ(machine.heard.back().answer.max_mhz, 600u);
}

TEST(LeaseTable, WhoJoinsDoesNotComputeAtAnothersClock) {
  Machine machine(1);
  const uint64_t a = machine.acquire(1, 0, true);
  machine.set_done(1, a, 600);
  ASSERT_NE(machine.acquire(2, 0, true), 0u);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  machine.end_session(2, Ending::kGone);
  machine.pass(50 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 600u) << "the wish of who stays";
  machine.end_session(1, Ending::kGone);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_TRUE(machine.marks.empty());
}

TEST(LeaseTable, OfSharersTheNewestWishMayCount) {
  Machine machine(1, 0, Sharing::kNewest);
  const uint64_t a = machine.acquire(1, 0, true), b = machine.acquire(2, 0, true);
  machine.set_done(1, a, 600);
  EXPECT_EQ(machine.clock_mhz[0], 600u);
  machine.set_done(2, b, 0);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  machine.set_done(1, a, 700);
  const uint64_t c = machine.acquire(3, 0, true);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 700u) << "who comes has not wished yet";
  machine.release(3, c);
  machine.release(2, b);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 700u);
  machine.acquire(2, 0, true);
  machine.end_session(1, Ending::kGone);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u) << "it goes with who wished for it";
  EXPECT_TRUE(machine.table.at_rest());
}

TEST(LeaseTable, SharingMayBeOff) {
  Machine machine(1, 0, Sharing::kNone);
  ASSERT_NE(machine.acquire(1, 0, true), 0u);
  EXPECT_EQ(machine.acquire(2, 0, true), 0u);
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_HELD);
}

TEST(LeaseTable, AllSharersHearOfARevoke) {
  Machine machine(1);
  const uint64_t a = machine.acquire(1, 0, true), b = machine.acquire(2, 0, true);
  machine.set(1, a, 600);
  machine.set_done(2, b, 600);
  machine.table.end(0, Ending::kRevoked, machine.now);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  int ended = 0;
  for (const Heard& said : machine.heard) ended += said.type == POWERCCL_LEASE_ENDED ? 1 : 0;
  EXPECT_EQ(ended, 2);
}

TEST(LeaseTable, ALeaseIsNoOthers) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  const uint64_t set = machine.set(2, lease, 600);
  EXPECT_EQ(machine.status_of(set), POWERCCL_LEASE_NONE);
  machine.release(2, lease);
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_NONE);
  EXPECT_EQ(machine.set(1, 0, 600), machine.serial);
  EXPECT_EQ(machine.status_of(machine.serial), POWERCCL_LEASE_NONE);
  EXPECT_TRUE(machine.jobs.empty());
}

TEST(LeaseTable, ClampsToTheRange) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  const uint64_t low = machine.set_done(1, lease, 10);
  EXPECT_EQ(machine.clock_mhz[0], 300u);
  EXPECT_EQ(machine.answer_to(low)->answer.flags, static_cast<uint32_t>(POWERCCL_LEASE_CLAMPED));
  EXPECT_EQ(machine.answer_to(low)->answer.max_mhz, 300u);
  machine.pass(30 * kMs);
  machine.set_done(1, lease, 9999);
  EXPECT_EQ(machine.clock_mhz[0], 1590u);
}

TEST(LeaseTable, ImpossibleClocksAreRefused) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.table.set(1, ++machine.serial, lease, 700, 600, machine.now);
  EXPECT_EQ(machine.status_of(machine.serial), POWERCCL_LEASE_BAD_MESSAGE);
  machine.table.set(1, ++machine.serial, lease, 0, 600, machine.now);
  EXPECT_EQ(machine.status_of(machine.serial), POWERCCL_LEASE_BAD_MESSAGE);
  EXPECT_TRUE(machine.jobs.empty());
}

TEST(LeaseTable, NewestWinsInsideTheRateLimit) {
  Machine machine(1, 20 * kMs);
  const uint64_t lease = machine.acquire(1, 0);
  const uint64_t first = machine.set(1, lease, 800);
  const uint64_t second = machine.set(1, lease, 700);  // while the first is under way
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 800u);
  const uint64_t third = machine.set(1, lease, 600);
  EXPECT_EQ(machine.status_of(second), POWERCCL_LEASE_SUPERSEDED);
  machine.pass(19 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 800u);
  EXPECT_EQ(machine.answer_to(third), nullptr);
  machine.pass(2 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 600u);
  EXPECT_EQ(machine.status_of(first), 0);
  EXPECT_EQ(machine.status_of(third), 0);
}

TEST(LeaseTable, BackToUsualSupersedesAWaitingClock) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set_done(1, lease, 700);
  const uint64_t later = machine.set(1, lease, 600);
  const uint64_t usual = machine.set_done(1, lease, 0);
  EXPECT_EQ(machine.status_of(later), POWERCCL_LEASE_SUPERSEDED);
  EXPECT_EQ(machine.status_of(usual), 0);
  machine.pass(100 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
}

TEST(LeaseTable, UpIsNotLimitedAndDownStaysLimited) {
  Machine machine(1, 20 * kMs);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set_done(1, lease, 600);
  const uint64_t up = machine.set_done(1, lease, 900);
  EXPECT_EQ(machine.clock_mhz[0], 900u);
  EXPECT_EQ(machine.status_of(up), 0);
  machine.set_done(1, lease, 600);
  EXPECT_EQ(machine.clock_mhz[0], 900u);
  machine.pass(21 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 600u);
}

TEST(LeaseTable, EveryEndingPutsBack) {
  for (const Ending ending : {Ending::kGone, Ending::kMissed, Ending::kRevoked, Ending::kStopping}) {
    Machine machine(2);
    const uint64_t lease = machine.acquire(1, 1);
    machine.set_done(1, lease, 450);
    ASSERT_EQ(machine.clock_mhz[1], 450u);
    machine.end_session(1, ending);
    machine.work_all();
    EXPECT_EQ(machine.clock_mhz[1], 0u) << text_of(ending);
    EXPECT_TRUE(machine.marks.empty());
    const bool told = machine.heard.back().type == POWERCCL_LEASE_ENDED;
    EXPECT_EQ(told, ending != Ending::kGone) << text_of(ending);
    const uint64_t late = machine.set(1, lease, 450);
    EXPECT_EQ(machine.status_of(late), POWERCCL_LEASE_NONE);
  }
}

TEST(LeaseTable, EndedWhileTheDriverSets) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set(1, lease, 450);
  machine.end_session(1, Ending::kGone);
  ASSERT_EQ(machine.jobs.size(), 1u);
  machine.work();  // the set, which nobody can take back
  EXPECT_EQ(machine.clock_mhz[0], 450u);
  ASSERT_EQ(machine.jobs.size(), 1u);
  machine.work();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_TRUE(machine.table.at_rest());
}

TEST(LeaseTable, TheNextHolderWaitsForTheRestore) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set_done(1, lease, 450);
  machine.release(1, lease);
  const uint64_t next = machine.acquire(2, 0);
  ASSERT_NE(next, 0u);
  const uint64_t set = machine.set(2, next, 900);
  machine.work();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_EQ(machine.answer_to(set), nullptr);
  machine.pass(50 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 900u);
  EXPECT_EQ(machine.status_of(set), 0);
}

TEST(LeaseTable, TheNextHolderNeverStartsAtTheLastOnesClock) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set(1, lease, 450);  // under way
  machine.end_session(1, Ending::kGone);
  ASSERT_NE(machine.acquire(2, 0), 0u);
  machine.work();
  EXPECT_EQ(machine.clock_mhz[0], 450u);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 0u);
}

TEST(LeaseTable, AWishThatWaitsIsAnsweredWhenItsLeaseIsReleased) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set(1, lease, 450);
  const uint64_t waiting = machine.set(1, lease, 500);
  machine.release(1, lease);
  EXPECT_EQ(machine.status_of(waiting), POWERCCL_LEASE_NONE);
}

TEST(LeaseTable, ARestoreThatFailsIsTriedUntilItSucceeds) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set_done(1, lease, 450);
  machine.fail_restores = 5;
  machine.end_session(1, Ending::kGone);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz[0], 450u);
  EXPECT_EQ(machine.marks.count("GPU-0"), 1u);
  EXPECT_EQ(machine.acquire(2, 0), 0u);
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_RESTORING);
  machine.pass(20'000 * kMs);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_TRUE(machine.marks.empty());
  EXPECT_NE(machine.acquire(2, 0), 0u);
}

TEST(LeaseTable, ADriverThatFailsMidwayIsPutBack) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.fail_sets = 1;
  const uint64_t set = machine.set_done(1, lease, 450);
  EXPECT_EQ(machine.status_of(set), 999);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  machine.end_session(1, Ending::kGone);
  EXPECT_TRUE(machine.marks.empty());
}

TEST(LeaseTable, ARefusedClockLeavesNoMark) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.refuse_sets = 1;
  const uint64_t set = machine.set_done(1, lease, 450);
  EXPECT_EQ(machine.status_of(set), 4);
  EXPECT_TRUE(machine.marks.empty());
  EXPECT_TRUE(machine.table.at_rest());
}

// A driver that sets no clocks restores none either, and a restore that is tried again for ever would end the daemon
// with an error.
TEST(LeaseTable, ARefusedClockOfALeaseThatEndedMeanwhileNeedsNoRestore) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.refuse_sets = 1;
  machine.fail_restores = 1000;
  machine.set(1, lease, 450);
  machine.end_session(1, Ending::kGone);
  machine.work_all();
  EXPECT_TRUE(machine.marks.empty());
  EXPECT_TRUE(machine.table.at_rest());
  EXPECT_TRUE(machine.table.all_restored());
  EXPECT_EQ(machine.fail_restores, 1000);
}

TEST(LeaseTable, NoMarkNoClock) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.disk_full = true;
  const uint64_t set = machine.set(1, lease, 450);
  EXPECT_EQ(machine.status_of(set), POWERCCL_LEASE_SYSTEM);
  EXPECT_TRUE(machine.jobs.empty());
  EXPECT_EQ(machine.clock_mhz[0], 0u);
}

TEST(LeaseTable, AMarkThatCannotBeClearedIsClearedNextTime) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.set_done(1, lease, 450);
  machine.disk_full = true;
  machine.set_done(1, lease, 0);
  EXPECT_EQ(machine.clock_mhz[0], 0u);
  EXPECT_EQ(machine.marks.count("GPU-0"), 1u);
  machine.disk_full = false;
  machine.pass(50 * kMs);
  machine.set_done(1, lease, 450);
  machine.end_session(1, Ending::kGone);
  machine.work_all();
  EXPECT_TRUE(machine.marks.empty());
}

TEST(LeaseTable, DrainingKeepsWhatThereIs) {
  Machine machine(2);
  const uint64_t lease = machine.acquire(1, 0);
  machine.table.draining = true;
  EXPECT_EQ(machine.acquire(2, 1), 0u);
  EXPECT_EQ(machine.heard.back().answer.status, POWERCCL_LEASE_DRAINING);
  const uint64_t set = machine.set_done(1, lease, 450);
  EXPECT_EQ(machine.status_of(set), 0);
}

TEST(LeaseTable, AClockThatHasNotArrivedIsReadAgain) {
  Machine machine(1);
  const uint64_t lease = machine.acquire(1, 0);
  machine.arrives = false;
  machine.set_done(1, lease, 450);
  machine.pass(9 * kMs);
  EXPECT_NE(machine.heard.back().type, POWERCCL_LEASE_SETTLED);
  machine.pass(2 * kMs);
  ASSERT_EQ(machine.heard.back().type, POWERCCL_LEASE_SETTLED);
  EXPECT_EQ(machine.heard.back().answer.outcome.now_mhz, 450u);
  EXPECT_EQ(machine.heard.back().answer.lease, lease);
}

TEST(LeaseTable, WhatAnEarlierDaemonLeftIsPutBack) {
  Machine machine(2);
  machine.clock_mhz[1] = 450;
  machine.marks.insert("GPU-1");
  machine.table.restore(1, true, machine.now);
  EXPECT_FALSE(machine.table.all_restored());
  machine.work_all();
  EXPECT_TRUE(machine.table.all_restored());
  EXPECT_EQ(machine.clock_mhz[1], 0u);
  EXPECT_TRUE(machine.marks.empty());
}

TEST(LeaseTable, AllCanBePutBackWhoeverSetThem) {
  Machine machine(3);
  machine.clock_mhz = {700, 0, 800};  // by somebody else
  machine.table.restore_all(machine.now);
  machine.work_all();
  EXPECT_EQ(machine.clock_mhz, (std::vector<uint32_t>{0, 0, 0}));
}

}  // namespace
}  // namespace powerccl::daemon
