// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#include "device/clock_journal.h"
#include "device/process.h"
#include "support.h"

using namespace powerccl::device;

namespace {

class ClockJournal : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(journal_open(&journal, folder.path().c_str(), &error), kOk) << error.text; }
  void TearDown() override { journal_close(&journal); }
  std::string file() const {
    char host[64];
    host_identity(host, sizeof host);
    return folder.path() + "/clocks-" + host + ".journal";
  }

  // A child that runs `body`, reports its result through a pipe and then waits to be killed.
  struct Child {
    pid_t pid = -1;
    int result = -1;
  };
  static Child start_child(const std::function<int()>& body) {
    int ends[2];
    if (pipe(ends) != 0) return {};
    Child child;
    child.pid = fork();
    if (child.pid == 0) {
      int result = body();
      if (write(ends[1], &result, sizeof result) != sizeof result) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &child.result, sizeof child.result), static_cast<ssize_t>(sizeof child.result));
    close(ends[0]);
    return child;
  }
  static void end_child(const Child& child) {
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  int claim_in_child(const char* uuid, bool mark) {
    journal_close(&journal);
    int code = journal_open(&journal, folder.path().c_str(), nullptr);
    if (code == kOk) code = journal_claim(&journal, uuid, &claim, nullptr);
    if (code == kOk && mark) code = journal_mark(&claim, nullptr);
    return code;
  }
  powerccl_journal_slot slot(unsigned index) {
    powerccl_journal_slot found;
    journal_read_slot(&journal, index, &found);
    return found;
  }
  bool alive(unsigned index) { return journal_owner_alive(&journal, index, slot(index)); }

  ScratchFolder folder;
  Journal journal;
  JournalClaim claim;
  Error error;
};

TEST_F(ClockJournal, IsAFileThatTheNextOpenerShares) {
  Journal other;
  ASSERT_EQ(journal_open_existing(&other, folder.path().c_str(), &error), kOk) << error.text;
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  ASSERT_EQ(journal_mark(&claim, &error), kOk);
  powerccl_journal_slot seen;
  ASSERT_TRUE(journal_read_slot(&other, 0, &seen));
  EXPECT_STREQ(seen.device, "GPU-a");
  EXPECT_EQ(seen.state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
  EXPECT_EQ(seen.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(seen.pid_namespace, pid_namespace(getpid()));
  EXPECT_TRUE(journal_slot_locked(&other, 0)) << "the claim holds a lock that everybody sees";
  EXPECT_FALSE(journal_slot_locked(&other, 1));
  EXPECT_EQ(std::filesystem::file_size(file()), sizeof(powerccl_journal));
  journal_close(&other);
}

TEST_F(ClockJournal, SlotIsClaimedMarkedClearedAndReleased) {
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_DEFAULT));
  EXPECT_EQ(slot(0).pid_start_ticks, process_start_ticks(getpid()));
  EXPECT_TRUE(alive(0));
  ASSERT_EQ(journal_mark(&claim, &error), kOk);
  journal_release(&claim);
  EXPECT_NE(slot(0).pid, 0u) << "a marked slot stays, for the agent";
  ASSERT_EQ(journal_clear(&claim, &error), kOk);
  journal_release(&claim);
  EXPECT_EQ(slot(0).pid, 0u);
  EXPECT_FALSE(alive(0));
  EXPECT_FALSE(journal_slot_locked(&journal, 0));
}

TEST_F(ClockJournal, GpuOfALivingProcessIsOwned) {
  Child owner = start_child([&] { return claim_in_child("GPU-a", false); });
  ASSERT_EQ(owner.result, kOk);
  EXPECT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOwned);
  EXPECT_EQ(claim.journal, nullptr);
  EXPECT_NE(std::strstr(error.text, std::to_string(owner.pid).c_str()), nullptr) << error.text;
  EXPECT_EQ(journal_claim(&journal, "GPU-b", &claim, &error), kOk);
  EXPECT_EQ(journal_claim(&journal, "GPU-b", &claim, &error), kOwned) << "by this process itself";
  end_child(owner);
  EXPECT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk) << "its owner is dead";
}

TEST_F(ClockJournal, MarkOutlivesAKilledProcess) {
  Child owner = start_child([&] { return claim_in_child("GPU-a", true); });
  ASSERT_EQ(owner.result, kOk);
  EXPECT_TRUE(alive(0));
  kill(owner.pid, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, owner.pid, &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(alive(0)) << "a zombie is dead";
  waitpid(owner.pid, nullptr, 0);
  EXPECT_FALSE(alive(0));
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
}

// A process of another namespace is known by its lock alone, and one that has closed our descriptor by its number.
TEST_F(ClockJournal, OwnerIsAliveByItsLockOrByItsNumber) {
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  Journal other;
  ASSERT_EQ(journal_open(&other, folder.path().c_str(), &error), kOk);
  powerccl_journal_slot mine = slot(0);
  EXPECT_TRUE(journal_owner_alive(&other, 0, mine));
  mine.pid_namespace += 1;
  EXPECT_TRUE(journal_owner_alive(&other, 0, mine));
  close(journal.fd);
  EXPECT_FALSE(journal_owner_alive(&other, 0, mine));
  mine.pid_namespace -= 1;
  EXPECT_TRUE(journal_owner_alive(&other, 0, mine));
  mine.pid_start_ticks += 1;
  EXPECT_FALSE(journal_owner_alive(&other, 0, mine)) << "the number is another process's";
  journal_close(&other);
}

TEST_F(ClockJournal, ForkedChildThatIsLeftKeepsNoLock) {
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  Child left = start_child([&] {
    journal_close(&journal);
    return 0;
  });
  EXPECT_TRUE(journal_slot_locked(&journal, 0));
  close(journal.fd);
  Journal other;
  ASSERT_EQ(journal_open(&other, folder.path().c_str(), &error), kOk);
  EXPECT_FALSE(journal_slot_locked(&other, 0));
  end_child(left);
  journal_close(&other);
}

// What closefrom(3) leaves, and what a program then opens with our number.
TEST_F(ClockJournal, ClosedDescriptorIsOpenedAgainAndNobodysFileIsTouched) {
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  const int number = journal.fd;
  close(number);
  const std::string theirs = folder.path() + "/theirs";
  ASSERT_EQ(open(theirs.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), number);
  ASSERT_EQ(journal_mark(&claim, &error), kOk) << error.text;
  EXPECT_EQ(std::filesystem::file_size(theirs), 0u);
  Journal other;
  ASSERT_EQ(journal_open(&other, folder.path().c_str(), &error), kOk);
  powerccl_journal_slot seen;
  ASSERT_TRUE(journal_read_slot(&other, 0, &seen));
  EXPECT_EQ(seen.state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
  EXPECT_TRUE(journal_slot_locked(&other, 0)) << "the lock is taken again";
  journal_close(&other);
  journal_close(&journal);
  EXPECT_EQ(fcntl(number, F_GETFD), FD_CLOEXEC) << "not ours to close";
  close(number);
}

TEST_F(ClockJournal, FileThatIsNoLongerWholeOrTheSameTakesNoMark) {
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &claim, &error), kOk);
  ASSERT_EQ(truncate(file().c_str(), 100), 0);
  EXPECT_EQ(journal_mark(&claim, &error), kJournalBad);
  EXPECT_NE(std::strstr(error.text, "was truncated"), nullptr) << error.text;
  EXPECT_EQ(std::filesystem::file_size(file()), 100u);
  std::filesystem::remove(file());
  close(journal.fd);
  EXPECT_EQ(journal_mark(&claim, &error), kSystem) << "it cannot be opened again";
  std::ofstream(file()) << "another file";
  EXPECT_EQ(journal_mark(&claim, &error), kJournalBad);
  EXPECT_EQ(std::filesystem::file_size(file()), 12u);
}

TEST_F(ClockJournal, OneOfManyClaimersWins) {
  std::vector<Child> children;
  for (int i = 0; i < 8; ++i) children.push_back(start_child([&] { return claim_in_child("GPU-a", false); }));
  int won = 0;
  for (const Child& child : children) won += child.result == kOk ? 1 : 0;
  for (const Child& child : children) end_child(child);
  EXPECT_EQ(won, 1);
}

TEST_F(ClockJournal, FullJournalIsReported) {
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i)
    ASSERT_EQ(journal_claim(&journal, ("GPU-" + std::to_string(i)).c_str(), &claim, &error), kOk);
  EXPECT_EQ(journal_claim(&journal, "GPU-more", &claim, &error), kJournalFull);
}

TEST_F(ClockJournal, RefusesNamesThatAreNone) {
  EXPECT_EQ(journal_claim(&journal, "", &claim, &error), kBadArgument);
  EXPECT_EQ(journal_claim(&journal, std::string(48, 'x').c_str(), &claim, &error), kBadArgument);
}

TEST_F(ClockJournal, RefusesAFileThatIsNoJournal) {
  Journal other;
  const uint32_t version = POWERCCL_JOURNAL_VERSION + 1;
  ASSERT_EQ(pwrite(journal.fd, &version, sizeof version, offsetof(powerccl_journal, version)), 4);
  EXPECT_EQ(journal_open(&other, folder.path().c_str(), &error), kJournalBad);
  std::ofstream(file(), std::ios::trunc) << "something else";
  EXPECT_EQ(journal_open(&other, folder.path().c_str(), &error), kJournalBad);
  EXPECT_EQ(other.fd, -1);
}

TEST(ClockJournalFolder, MissingFolderIsReported) {
  Journal journal;
  Error error;
  EXPECT_EQ(journal_open(&journal, "/nowhere/at/all", &error), kSystem);
  EXPECT_NE(std::strstr(error.text, "No such file"), nullptr) << error.text;
  EXPECT_STRNE(hint(kSystem), "");
}

TEST(ClockJournalFolder, FullDiskIsAnErrorAndLeavesNoHalfJournal) {
  ScratchFolder folder;
  pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    Journal journal;
    Error error;
    int first = journal_open(&journal, folder.path().c_str(), &error);
    int second = journal_open_existing(&journal, folder.path().c_str(), nullptr);
    _exit(first == kSystem && error.text[0] && second == kJournalBad ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ProcessStart, SurvivesAwkwardNames) {
  uint64_t before = process_start_ticks(getpid());
  EXPECT_GT(before, 0u);
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  prctl(PR_SET_NAME, ") R 1 (x y");
  EXPECT_EQ(process_start_ticks(getpid()), before);
  prctl(PR_SET_NAME, name);
  EXPECT_EQ(process_start_ticks(0x3fffffff), 0u);
}

}  // namespace
