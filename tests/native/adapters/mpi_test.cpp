// SPDX-License-Identifier: Apache-2.0
// What of the MPI adapter runs without MPI: which library it is, and what is known of its communicators.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../record/trace_reader.h"
#include "adapters/mpi/call_accounts.h"
#include "adapters/mpi/communicators.h"
#include "adapters/mpi/rounds.h"

namespace powerccl::mpi {
namespace {

struct Version {
  std::string name;
  int major = 0, minor = 0;
};

Version parsed(const char* text, bool standard_abi = false) {
  char name[32];
  Version version;
  parse_version(text, standard_abi, name, sizeof(name), &version.major, &version.minor);
  version.name = name;
  return version;
}

TEST(MpiVersion, IsReadFromWhatLibrariesSay) {
  const Version mpich = parsed("MPICH Version:      5.0.2\nMPICH Release date: unreleased\nMPICH ABI:  0:0:0\n");
  EXPECT_EQ(mpich.name, "mpich 5.0.2");
  EXPECT_EQ(mpich.major, 5);
  EXPECT_EQ(parsed("MPICH Version:\t4.0.2\n", true).name, "mpich abi 4.0.2");
  const Version open = parsed("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4");
  EXPECT_EQ(open.name, "open mpi 4.1.4");
  EXPECT_EQ(open.minor, 1);
  EXPECT_EQ(parsed("Intel(R) MPI Library 2021.14 for Linux* OS\n").name, "intel mpi 2021.14");
  EXPECT_EQ(parsed("MVAPICH2 Version      :\t2.3.7\n").major, 2);
  EXPECT_EQ(parsed("something else 9.9").name, "unknown mpi");
  EXPECT_EQ(parsed("").name, "unknown mpi");
  EXPECT_EQ(parsed("Open MPI v").major, 0);
}

// As Open MPI: one place, and a progress function in every round.
TEST(Rounds, MoreThanOneBetweenTwoVisitsMeansThatSomethingMoved) {
  Rounds rounds;
  const int place = 0;
  rounds.begin();
  EXPECT_EQ(rounds.visit(&place), Moved::kUnknown) << "nothing has been counted yet";
  for (int i = 0; i < 5000; ++i) {
    rounds.round(1);
    ASSERT_EQ(rounds.visit(&place), Moved::kNothing);
  }
  rounds.round(1);
  rounds.round(1);
  EXPECT_EQ(rounds.visit(&place), Moved::kSomething);
  rounds.round(1);
  EXPECT_EQ(rounds.visit(&place), Moved::kNothing);
}

// As MPICH: it yields in its loop after every round, and in its progress function once 200 rounds moved nothing.
TEST(Rounds, APlaceThatIsLeftOutMeansThatSomethingMoved) {
  Rounds rounds;
  const int progress = 0, loop = 0;
  rounds.begin();
  for (int i = 0; i < 200; ++i) ASSERT_EQ(rounds.visit(&loop), Moved::kUnknown);
  rounds.visit(&progress);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(rounds.visit(&loop), Moved::kNothing);
    ASSERT_EQ(rounds.visit(&progress), Moved::kNothing);
  }
  EXPECT_EQ(rounds.visit(&loop), Moved::kNothing);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(rounds.visit(&loop), Moved::kSomething) << "its count began anew";
  EXPECT_EQ(rounds.visit(&progress), Moved::kNothing);
  EXPECT_EQ(rounds.visit(&loop), Moved::kNothing);
}

// As Intel MPI: it measures the time behind every visit but the first of a loop.
TEST(Rounds, AVisitWithoutATimeMeansThatTheLoopBeganAnew) {
  Rounds rounds;
  const int place = 0;
  rounds.begin();
  rounds.visit(&place);
  EXPECT_EQ(rounds.visit(&place), Moved::kUnknown) << "no time was ever measured: another version";
  for (int i = 0; i < 5000; ++i) {
    rounds.time();
    ASSERT_EQ(rounds.visit(&place), Moved::kNothing);
  }
  rounds.time();
  EXPECT_EQ(rounds.visit(&place), Moved::kNothing) << "the first visit of another loop";
  EXPECT_EQ(rounds.visit(&place), Moved::kSomething);
  rounds.time();
  EXPECT_EQ(rounds.visit(&place), Moved::kNothing);
}

// As MPICH before 4.3 over UCX: what moves in shared memory is not seen.
TEST(Rounds, WhatIsTheOnlySignOfSomeMovesTellsNothingOfOthers) {
  Rounds rounds;
  rounds.begin();
  rounds.moved();
  EXPECT_EQ(rounds.visit(nullptr), Moved::kSomething);
  EXPECT_EQ(rounds.visit(nullptr), Moved::kUnknown);
}

TEST(Rounds, AnotherLoopWithOnePlaceIsNotTakenForWorkForLong) {
  Rounds rounds;
  const int progress = 0, loop = 0;
  rounds.begin();
  rounds.visit(&loop);
  rounds.visit(&progress);
  int awake = 0;
  for (int i = 0; i < 10000; ++i) awake += rounds.visit(&progress) == Moved::kSomething ? 1 : 0;
  EXPECT_LE(awake, 2000);
}

// A library with as many communicators as a test puts in.
struct FakeLibrary {
  struct Comm {
    std::vector<int> members;
    int rank = 0;
    bool inter = false;
  };
  static inline std::map<Word, Comm> comms;
  static inline int asked = 0;

  static void make(Library& library) {
    comms.clear();
    asked = 0;
    library.world_is_up = true;
    library.comm_world = 100;
    library.comm_self = 101;
    library.comm_size = [](Word comm, int* size) {
      ++asked;
      if (comms.count(comm) == 0) return 5;
      *size = static_cast<int>(comms[comm].members.size());
      return 0;
    };
    library.comm_rank = [](Word comm, int* rank) {
      *rank = comms[comm].rank;
      return 0;
    };
    library.comm_test_inter = [](Word comm, int* inter) {
      *inter = comms[comm].inter ? 1 : 0;
      return 0;
    };
    library.comm_group = [](Word comm, Word* group) {
      *group = comm;
      return 0;
    };
    library.group_translate_ranks = [](Word group, int count, const int* from, Word, int* to) {
      for (int i = 0; i < count; ++i) to[i] = comms[group].members[static_cast<size_t>(from[i])];
      return 0;
    };
    library.group_free = [](Word*) { return 0; };
    comms[100] = {{0, 1, 2, 3}, 2, false};
    comms[101] = {{2}, 0, false};
  }
};

class CommunicatorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path = ::testing::TempDir() + "communicators-" + std::to_string(getpid()) + ".trace";  // others run beside this
    unlink(path.c_str());
    ASSERT_EQ(trace.open(path.c_str(), powerccl_trace_header(), 4u << 20), 0);
    FakeLibrary::make(library);
  }
  void TearDown() override { unlink(path.c_str()); }

  std::string path;
  TraceWriter trace;
  Library library;
  std::unique_ptr<Communicators> communicators = std::make_unique<Communicators>();
};

TEST_F(CommunicatorsTest, AreRecordedOnceWithAnIdThatAllRanksShare) {
  FakeLibrary::comms[200] = {{1, 2}, 1, false};
  FakeLibrary::comms[201] = {{2, 1}, 0, false};
  EXPECT_EQ(communicators->look_up(library, 100, &trace).index, 0u);
  EXPECT_EQ(communicators->look_up(library, 200, &trace).index, 1u);
  EXPECT_EQ(communicators->look_up(library, 201, &trace).index, 2u) << "the same members in another order";
  EXPECT_EQ(communicators->look_up(library, 100, &trace).size, 4);
  EXPECT_EQ(communicators->look_up(library, 200, &trace).rank, 1);

  // Another rank of the same communicator, which met it in another order.
  auto others = std::make_unique<Communicators>();
  FakeLibrary::comms[300] = {{1, 2}, 0, false};
  others->look_up(library, 300, &trace);
  trace.flush();
  const auto records = test::read_trace(path).of(POWERCCL_REC_COMM);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].comm_up.comm_id, 1u);
  EXPECT_STREQ(records[0].comm_up.name, "world");
  EXPECT_EQ(records[1].comm_up.comm_id, records[3].comm_up.comm_id);
  EXPECT_NE(records[1].comm_up.comm_id, records[2].comm_up.comm_id);
}

TEST_F(CommunicatorsTest, AHandleThatIsUsedAgainIsAskedAboutAgain) {
  FakeLibrary::comms[200] = {{1, 2}, 1, false};
  const uint32_t before = communicators->generation();
  const uint32_t first = communicators->look_up(library, 200, &trace).index;
  const int asked = FakeLibrary::asked;
  communicators->look_up(library, 200, &trace);
  EXPECT_EQ(FakeLibrary::asked, asked);
  communicators->freed(200);
  EXPECT_NE(communicators->generation(), before);
  FakeLibrary::comms[200] = {{0, 2, 3}, 1, false};
  const CommunicatorKnown again = communicators->look_up(library, 200, &trace);
  EXPECT_EQ(again.size, 3);
  EXPECT_NE(again.index, first);
}

TEST_F(CommunicatorsTest, ThousandsComeAndGoAndNoneIsMixedUp) {
  for (Word round = 0; round < 3; ++round) {
    for (Word i = 0; i < 3000; ++i) FakeLibrary::comms[1000 + 16 * i] = {{static_cast<int>(i % 4)}, 0, false};
    for (Word i = 0; i < 3000; ++i) ASSERT_EQ(communicators->look_up(library, 1000 + 16 * i, &trace).size, 1);
    for (Word i = 0; i < 3000; i += 2) communicators->freed(1000 + 16 * i);
    const int asked = FakeLibrary::asked;
    for (Word i = 1; i < 3000; i += 2) communicators->look_up(library, 1000 + 16 * i, &trace);
    EXPECT_EQ(FakeLibrary::asked, asked) << "those that stay are still known";
    for (Word i = 1; i < 3000; i += 2) communicators->freed(1000 + 16 * i);
  }
  trace.flush();
  EXPECT_EQ(test::read_trace(path).of(POWERCCL_REC_COMM).size(), 4u) << "one for each set of members";
}

TEST_F(CommunicatorsTest, AnInvalidHandleIsUnknownAndNotRemembered) {
  EXPECT_EQ(communicators->look_up(library, 999, &trace).index, Communicators::kUnknown);
  FakeLibrary::comms[999] = {{0}, 0, false};
  EXPECT_EQ(communicators->look_up(library, 999, &trace).size, 1);
}

TEST_F(CommunicatorsTest, TwoGroupsJoinedAreNotTheirFirstGroup) {
  FakeLibrary::comms[200] = {{1, 2}, 1, false};
  FakeLibrary::comms[201] = {{1, 2}, 1, true};
  const uint32_t plain = communicators->look_up(library, 200, &trace).index;
  const CommunicatorKnown inter = communicators->look_up(library, 201, &trace);
  EXPECT_TRUE(inter.inter);
  EXPECT_NE(inter.index, plain);
  EXPECT_FALSE(inter.in_world);
}

// What a barrier in front of a collective hangs on must be the same on all ranks, whatever else each has.
TEST_F(CommunicatorsTest, IsKnownAsWellWhereThereAreTooManyToRemember) {
  for (Word i = 0; i < Communicators::kMost; ++i) {
    FakeLibrary::comms[1000 + i] = {{2}, 0, false};
    communicators->look_up(library, 1000 + i, &trace);
  }
  FakeLibrary::comms[200] = {{0, 1, 2}, 2, false};
  const CommunicatorKnown known = communicators->look_up(library, 200, &trace);
  EXPECT_EQ(known.size, 3);
  EXPECT_TRUE(known.in_world);
}

TEST_F(CommunicatorsTest, OneOfTwoWorldsIsTold) {
  constexpr int kUndefined = -32766;
  FakeLibrary::comms[200] = {{0, 1, 2, 3, kUndefined}, 2, false};
  EXPECT_FALSE(communicators->look_up(library, 200, &trace).in_world);
  EXPECT_TRUE(communicators->look_up(library, 100, &trace).in_world);
}

TEST_F(CommunicatorsTest, AnotherLifeOfTheLibraryHasOtherHandles) {
  FakeLibrary::comms[200] = {{1, 2}, 1, false};
  const uint32_t index = communicators->look_up(library, 200, &trace).index;
  const uint32_t before = communicators->generation();
  forget(&library);
  communicators->forget_handles();
  EXPECT_NE(communicators->generation(), before);
  EXPECT_EQ(communicators->look_up(library, 200, &trace).index, Communicators::kUnknown) << "nobody is asked";
  FakeLibrary::make(library);
  FakeLibrary::comms[200] = {{0, 2, 3}, 1, false};
  FakeLibrary::comms[208] = {{1, 2}, 1, false};
  EXPECT_EQ(communicators->look_up(library, 200, &trace).size, 3);
  EXPECT_EQ(communicators->look_up(library, 208, &trace).index, index) << "the trace goes on";
}

TEST_F(CommunicatorsTest, NothingIsAskedWhereThereIsNoWorld) {
  library.world_is_up = false;
  FakeLibrary::comms[200] = {{1, 2}, 1, false};
  EXPECT_EQ(communicators->look_up(library, 200, &trace).index, Communicators::kUnknown);
  EXPECT_EQ(FakeLibrary::asked, 0);
}

}  // namespace

}  // namespace powerccl::mpi

namespace powerccl {
namespace {

TEST(CallAccounts, SizeClassesArePowersOfTwo) {
  EXPECT_EQ(size_class_of(0), 0);
  EXPECT_EQ(size_class_of(1), 1);
  EXPECT_EQ(size_class_of(8), 4);
  EXPECT_EQ(size_class_of(15), 4);
  EXPECT_EQ(size_class_of(16), 5);
  EXPECT_EQ(size_class_of(UINT64_MAX), 64);
}

TEST(CallAccounts, SumsAreKeptApartByFunctionCommunicatorAndSizeAndTheLatestCounts) {
  TickClock clock;  // ticks are nanoseconds until it begins
  const std::string path = ::testing::TempDir() + "accounts-" + std::to_string(getpid()) + ".trace";
  unlink(path.c_str());
  TraceWriter trace;
  ASSERT_EQ(trace.open(path.c_str(), powerccl_trace_header(), 4u << 20), 0);
  auto accounts = std::make_unique<CallAccounts>();
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->add({3, 1, 8, 10, 0, 0});
  accounts->add({3, 0, 1024, 1000, 0, 0});
  accounts->flush(trace, clock, 7, 42);
  accounts->flush(trace, clock, 7, 43);  // nothing has changed
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->flush(trace, clock, 7, 44);
  trace.close();

  std::map<std::pair<int, int>, powerccl_trace_record> latest;
  int records = 0;
  for (const auto& record : test::read_trace(path).records) {
    ASSERT_EQ(record.kind, POWERCCL_REC_MPI_TOTAL);
    EXPECT_EQ(record.mpi_total.thread, 7);
    EXPECT_EQ(record.mpi_total.function, 3);
    latest[{record.comm, record.mpi_total.size_class}] = record;
    ++records;
  }
  EXPECT_EQ(records, 4);
  ASSERT_EQ(latest.size(), 3u);
  const auto& eight = latest[{0, 4}].mpi_total;
  EXPECT_EQ(eight.calls, 3u);
  EXPECT_EQ(eight.bytes, 24u);
  EXPECT_EQ(eight.call_ns, 300u);
  EXPECT_EQ(eight.wait_ns, 180u);
  EXPECT_EQ(eight.sleep_ns, 60u);
  EXPECT_EQ(eight.time_ns, 44u);
  unlink(path.c_str());
}

TEST(CallAccounts, WhatFindsNoRoomIsCounted) {
  auto accounts = std::make_unique<CallAccounts>();
  for (uint32_t comm = 0; comm < CallAccounts::kEntries; ++comm) accounts->add({1, comm, 0, 1, 0, 0});
  EXPECT_EQ(accounts->left_out(), CallAccounts::kEntries / 2);
  accounts->add({1, 0, 0, 1, 0, 0});
  EXPECT_EQ(accounts->left_out(), CallAccounts::kEntries / 2) << "what is known goes on being counted";
}

}  // namespace

}  // namespace powerccl
