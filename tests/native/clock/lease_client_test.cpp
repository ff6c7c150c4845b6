// SPDX-License-Identifier: Apache-2.0
// The lease client alone: what it asks, and what becomes of every kind of answer.
#include "clock/lease_client.h"

#include "lease_fixture.h"

namespace powerccl::test {
namespace {

TEST_F(LeaseTest, AsksSetsReadsAndReleases) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_FALSE(client.dry());
  EXPECT_EQ(grant(), 1u);
  EXPECT_EQ(daemon.run, "run-7");
  EXPECT_EQ(daemon.device, "GPU-1");
  EXPECT_EQ(set(480), 0);
  EXPECT_EQ(daemon.now_mhz, 480u);
  ClockPolicy::Reading reading;
  EXPECT_EQ(client.read(&reading), 0);
  EXPECT_EQ(reading.mhz, 480u);
  EXPECT_EQ(reading.limit_mw, 70000u);
  EXPECT_EQ(client.reset(), 0);
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480, 0}));
  client.close();
  EXPECT_TRUE(eventually([&] { return daemon.releases == 1 && daemon.ends == 1; }));
  EXPECT_EQ(grant(), 0u);
  EXPECT_EQ(said(), "");
}

TEST_F(LeaseTest, ARunMayHaveAnyName) {
  daemon.start();
  ASSERT_EQ(open("gr\xc3\xb6\xc3\x9f"
                 "e\n7"),
            0);
  EXPECT_EQ(daemon.run, "gr????e?7");
}

TEST_F(LeaseTest, ADaemonThatRunsDrySaysSo) {
  daemon.welcome_flags = POWERCCL_LEASE_DRY;
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_TRUE(client.dry());
}

TEST_F(LeaseTest, ShowsTheDeviceFileThatTheDaemonNames) {
  folder.write("nvidia1", "");
  daemon.file = folder / "nvidia1";
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_EQ(grant(), 1u);
  EXPECT_TRUE(daemon.file_seen);
  EXPECT_EQ(daemon.acquires, 1);
}

TEST_F(LeaseTest, ADeviceFileThatCannotBeOpenedIsARefusal) {
  daemon.file = folder / "nvidia9";
  daemon.start();
  EXPECT_EQ(open(), LeaseClient::kNoFile);
  EXPECT_NE(std::string(why).find("nvidia9 (No such file or directory)"), std::string::npos) << why;
  EXPECT_NE(hint, "");
  EXPECT_TRUE(eventually([&] { return daemon.ends == 1; }));
}

TEST_F(LeaseTest, SomeAnswersAreForGood) {
  for (const int status :
       {POWERCCL_LEASE_NOT_ALLOWED, POWERCCL_LEASE_NO_DEVICE, POWERCCL_LEASE_REVOKED, POWERCCL_LEASE_BAD_MESSAGE}) {
    for (std::atomic<int>* said_in : {&daemon.acquire_status, &daemon.welcome_status}) {
      *said_in = status;
      daemon.start();
      EXPECT_EQ(open(), status);
      EXPECT_STRNE(why, "");
      EXPECT_NE(hint, "");
      daemon.stop();
      *said_in = 0;
    }
  }
  EXPECT_EQ(said(), "");  // the caller says it
}

class NotNow : public LeaseTest, public testing::WithParamInterface<int> {};

TEST_P(NotNow, IsAskedAgain) {
  daemon.acquire_status = GetParam();
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_EQ(grant(), 0u);
  const std::string first = said();
  EXPECT_EQ(first.find("powerccl: cannot set the clock of GPU-1 at present: "), 0u) << first;
  EXPECT_NE(first.find("\nhint: "), std::string::npos);
  EXPECT_EQ(set(480), kClockNotNow);
  EXPECT_EQ(client.reset(), 0);
  EXPECT_TRUE(ticks_until([&] { return daemon.acquires >= 3; }));
  EXPECT_EQ(said(), "");
  daemon.acquire_status = 0;
  EXPECT_TRUE(ticks_until([&] { return grant() == 1; }));
  EXPECT_EQ(set(480), 0);
  EXPECT_EQ(said(), "powerccl: the clock of GPU-1 can be set again\n");
  EXPECT_EQ(daemon.sets(), (std::vector<uint32_t>{480}));
}
INSTANTIATE_TEST_SUITE_P(Statuses, NotNow,
                         testing::Values(POWERCCL_LEASE_HELD, POWERCCL_LEASE_DRAINING, POWERCCL_LEASE_RESTORING,
                                         POWERCCL_LEASE_TOO_MANY, POWERCCL_LEASE_SYSTEM, POWERCCL_LEASE_STOPPING));

TEST_F(LeaseTest, WhoIsTurnedAwayAsksAgain) {
  daemon.turns_away = POWERCCL_LEASE_TOO_MANY;
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_NE(said().find("powerccld has too many sessions"), std::string::npos);
  daemon.turns_away = 0;
  EXPECT_TRUE(ticks_until([&] { return grant() == 1; }));
}

TEST_F(LeaseTest, WhoHoldsItIsSaid) {
  daemon.acquire_status = POWERCCL_LEASE_HELD;
  daemon.start();
  ASSERT_EQ(open(), 0);
  EXPECT_NE(said().find("process 4242 of user 1001 has the lease"), std::string::npos);
}

TEST_F(LeaseTest, ADaemonThatIsNotThereIsTriedLessAndLessOften) {
  ASSERT_EQ(open(), 0);
  EXPECT_NE(said().find("cannot connect to powerccld at " + (folder / "socket").string() + " (No such file"),
            std::string::npos);
  uint64_t expected_ns = LeaseClient::kFirstBackOffNs;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const uint64_t again_ns = client.tick();
    EXPECT_LE(again_ns, expected_ns);
    EXPECT_GE(again_ns, expected_ns - 50000000u);
    usleep(static_cast<useconds_t>(again_ns / 1000 + 1000));
    expected_ns *= 2;
  }
  daemon.start();
  EXPECT_TRUE(ticks_until([&] { return grant() == 1; }));
  EXPECT_EQ(set(480), 0);
}

TEST_F(LeaseTest, ASocketForOthersIsARefusal) {
  if (geteuid() == 0) GTEST_SKIP() << "root may use every socket";
  daemon.start();
  chmod((folder / "socket").c_str(), 0);
  EXPECT_EQ(open(), POWERCCL_LEASE_NOT_ALLOWED);
}

class Nonsense : public LeaseTest, public testing::WithParamInterface<Manners> {
 protected:
  int expected() { return GetParam() == Manners::kWrongVersion ? LeaseClient::kOtherVersion : LeaseClient::kNonsense; }
};

TEST_P(Nonsense, AtFirstIsARefusal) {
  daemon.manners = GetParam();
  daemon.start();
  EXPECT_EQ(open(), expected());
  EXPECT_STRNE(why, "");
  EXPECT_NE(hint, "");
}
TEST_P(Nonsense, LaterIsARefusalForGood) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.lease_manners = GetParam();
  EXPECT_EQ(set(480), expected());
  EXPECT_EQ(grant(), 0u);
  EXPECT_TRUE(eventually([&] { return daemon.ends == 1; }));
  daemon.lease_manners = Manners::kGood;
  EXPECT_FALSE(ticks_until([&] { return grant() != 0; }, kSecond / 2));
  EXPECT_EQ(set(480), expected());
  EXPECT_EQ(client.reset(), 0);
  EXPECT_EQ(daemon.hellos, 1);
  const char* advice = nullptr;
  EXPECT_STRNE(client.explain(expected(), &advice), "");
  EXPECT_STRNE(advice, "");
}
INSTANTIATE_TEST_SUITE_P(Manners, Nonsense,
                         testing::Values(Manners::kWrongSize, Manners::kWrongMagic, Manners::kWrongVersion,
                                         Manners::kUnknownType, Manners::kUnterminated, Manners::kTooLong,
                                         Manners::kSerialAhead));

class NoAnswer : public LeaseTest, public testing::WithParamInterface<Manners> {};

TEST_P(NoAnswer, ArmingIsNotHeldUp) {
  daemon.manners = GetParam();
  daemon.start();
  const uint64_t begin = monotonic_ns();
  EXPECT_EQ(open(), 0);
  EXPECT_LT(monotonic_ns() - begin, kSecond);
  EXPECT_EQ(grant(), 0u);
  EXPECT_NE(said().find("did not answer in time"), std::string::npos);
}
TEST_P(NoAnswer, AClockIsWaitedForSoLong) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.lease_manners = GetParam();
  const uint64_t begin = monotonic_ns();
  EXPECT_EQ(set(480), kClockNotNow);
  EXPECT_LT(monotonic_ns() - begin, 4 * kSecond);
  EXPECT_EQ(grant(), 0u);
  EXPECT_EQ(set(480), kClockNotNow);  // at once
  EXPECT_LT(monotonic_ns() - begin, 4 * kSecond);
  daemon.lease_manners = Manners::kGood;
  EXPECT_TRUE(ticks_until([&] { return grant() == 2; }));
  EXPECT_EQ(set(510), 0);
}
INSTANTIATE_TEST_SUITE_P(Manners, NoAnswer, testing::Values(Manners::kSilent, Manners::kDeaf, Manners::kTalkative));

TEST_F(LeaseTest, AnAnswerToSomethingElseIsNone) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.lease_manners = Manners::kSerialBehind;
  EXPECT_EQ(set(480), kClockNotNow);
  EXPECT_TRUE(eventually([&] { return daemon.now_mhz == 0u; }));  // the connection has ended, and with it the lease
}

TEST_F(LeaseTest, ALateAnswerIsWaitedFor) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.answer_delay_ms = 500;
  EXPECT_EQ(set(480), 0);
  EXPECT_EQ(set(510), 0);
}

TEST_F(LeaseTest, WhatCameTooLateIsASuccess) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.set_status = POWERCCL_LEASE_SUPERSEDED;
  EXPECT_EQ(set(480), 0);
  EXPECT_EQ(grant(), 1u);
}

TEST_F(LeaseTest, TheDriversFailureIsPassedOn) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.set_status = 15;
  EXPECT_EQ(set(480), 15);
  EXPECT_EQ(grant(), 1u);
  const char* advice = nullptr;
  EXPECT_STREQ(client.explain(15, &advice), "powerccld's driver: GPU is?lost");
}

TEST_F(LeaseTest, ALeaseThatEndsIsAskedForAgain) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  for (uint64_t grants = 1;
       const int status : {POWERCCL_LEASE_MISSED, POWERCCL_LEASE_STOPPING, POWERCCL_LEASE_RESTORING}) {
    daemon.end(status);
    EXPECT_TRUE(ticks_until([&] { return grant() == 0; })) << status;
    EXPECT_EQ(set(480), kClockNotNow);
    EXPECT_TRUE(ticks_until([&] { return grant() == grants + 1; })) << status;
    ++grants;
  }
}

TEST_F(LeaseTest, ARevokedLeaseIsNotAskedForAgain) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.end(POWERCCL_LEASE_REVOKED);
  EXPECT_TRUE(ticks_until([&] { return grant() == 0; }));
  EXPECT_EQ(set(480), POWERCCL_LEASE_REVOKED);
  EXPECT_FALSE(ticks_until([&] { return daemon.hellos > 1; }, kSecond / 2));
  EXPECT_EQ(said(), "");
}

TEST_F(LeaseTest, TheEndOfALeaseIsMetOnTheWayToo) {
  daemon.start();
  ASSERT_EQ(open(), 0);
  daemon.answer_delay_ms = 100;
  daemon.end(POWERCCL_LEASE_REVOKED);
  usleep(50000);
  EXPECT_EQ(set(480), POWERCCL_LEASE_REVOKED);
}

TEST_F(LeaseTest, TheDaemonHearsFromItThreeTimesAsOftenAsItMust) {
  daemon.heartbeat_ms = 300;
  daemon.start();
  ASSERT_EQ(open(), 0);
  ticks_until([] { return false; }, kSecond);
  EXPECT_GE(daemon.heartbeats, 6);
  EXPECT_LE(daemon.heartbeats, 11);
  EXPECT_EQ(grant(), 1u);
  // And is expected to answer.
  daemon.manners = Manners::kSilent;
  EXPECT_TRUE(ticks_until([&] { return grant() == 0; }, 2 * kSecond));
  EXPECT_NE(said().find("did not answer in time"), std::string::npos);
}

TEST_F(LeaseTest, AFullSocketIsNotWaitedFor) {
  daemon.manners = Manners::kDeaf;
  daemon.start();
  LeaseConnection connection;
  ASSERT_EQ(connection.open((folder / "socket").c_str()), 0);
  int error = 0;
  const uint64_t begin = monotonic_ns();
  for (int sent = 0; sent < 100000 && error == 0; ++sent) {
    powerccl_lease_header heartbeat = {};
    error = connection.send(&heartbeat, POWERCCL_LEASE_HEARTBEAT, sizeof(heartbeat));
  }
  EXPECT_EQ(error, EAGAIN);
  EXPECT_LT(monotonic_ns() - begin, 2 * kSecond);
}

TEST_F(LeaseTest, PathsThatNoSocketCanHaveAreRefusedOrNotThere) {
  LeaseConnection connection;
  EXPECT_EQ(connection.open(""), ENOENT);
  EXPECT_EQ(connection.open(std::string(108, 'x').c_str()), ENAMETOOLONG);
  const std::string path(200, 'x');
  terms.socket_path = path.c_str();
  const char* advice = nullptr;
  EXPECT_EQ(lease.open(terms, why, sizeof(why), &advice), LeaseClient::kNotReachable);
  EXPECT_NE(std::string(why).find("longer than 107"), std::string::npos);
}

}  // namespace
}  // namespace powerccl::test
