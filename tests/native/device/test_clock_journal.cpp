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
#include "support.h"

using namespace powerccl::device;

namespace {

class ClockJournal : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(journal_open(&journal, folder.path().c_str(), &error), kOk) << error.text; }
  void TearDown() override { journal_close(&journal); }
  std::string file() const {
    char host[64];
    host_name(host, sizeof host);
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
    powerccl_journal_slot* slot = nullptr;
    int code = journal_claim(&journal, uuid, &slot, nullptr);
    if (code == kOk && mark) journal_mark(slot);
    return code;
  }

  ScratchFolder folder;
  Journal journal;
  Error error;
};

TEST_F(ClockJournal, IsAFileThatTheNextOpenerShares) {
  Journal other;
  ASSERT_EQ(journal_open_existing(&other, folder.path().c_str(), &error), kOk) << error.text;
  powerccl_journal_slot* slot = nullptr;
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &slot, &error), kOk);
  journal_mark(slot);
  EXPECT_STREQ(other.map->slot[0].device, "GPU-a");
  EXPECT_EQ(other.map->slot[0].state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
  EXPECT_EQ(other.map->slot[0].pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(std::filesystem::file_size(file()), sizeof(powerccl_journal));
  journal_close(&other);
}

TEST_F(ClockJournal, SlotIsClaimedMarkedClearedAndReleased) {
  powerccl_journal_slot* slot = nullptr;
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &slot, &error), kOk);
  EXPECT_EQ(slot->state, static_cast<uint32_t>(POWERCCL_CLOCK_DEFAULT));
  EXPECT_EQ(slot->pid_start_ticks, process_start_ticks(getpid()));
  EXPECT_TRUE(journal_owner_alive(slot));
  journal_mark(slot);
  journal_release(slot);
  EXPECT_NE(slot->pid, 0u) << "a marked slot stays, for the agent";
  journal_clear(slot);
  journal_release(slot);
  EXPECT_EQ(slot->pid, 0u);
  EXPECT_FALSE(journal_owner_alive(slot));
}

TEST_F(ClockJournal, GpuOfALivingProcessIsOwned) {
  Child owner = start_child([&] { return claim_in_child("GPU-a", false); });
  ASSERT_EQ(owner.result, kOk);
  powerccl_journal_slot* slot = nullptr;
  EXPECT_EQ(journal_claim(&journal, "GPU-a", &slot, &error), kOwned);
  EXPECT_EQ(slot, nullptr);
  EXPECT_NE(std::strstr(error.text, std::to_string(owner.pid).c_str()), nullptr) << error.text;
  EXPECT_EQ(journal_claim(&journal, "GPU-b", &slot, &error), kOk);
  end_child(owner);
  EXPECT_EQ(journal_claim(&journal, "GPU-a", &slot, &error), kOk) << "its owner is dead";
}

TEST_F(ClockJournal, MarkOutlivesAKilledProcess) {
  Child owner = start_child([&] { return claim_in_child("GPU-a", true); });
  ASSERT_EQ(owner.result, kOk);
  EXPECT_TRUE(journal_owner_alive(&journal.map->slot[0]));
  kill(owner.pid, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, owner.pid, &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(journal_owner_alive(&journal.map->slot[0])) << "a zombie is dead";
  waitpid(owner.pid, nullptr, 0);
  EXPECT_FALSE(journal_owner_alive(&journal.map->slot[0]));
  EXPECT_EQ(journal.map->slot[0].state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
}

TEST_F(ClockJournal, ReusedProcessNumberIsNotTheOwner) {
  powerccl_journal_slot* slot = nullptr;
  ASSERT_EQ(journal_claim(&journal, "GPU-a", &slot, &error), kOk);
  slot->pid_start_ticks += 1;
  EXPECT_FALSE(journal_owner_alive(slot));
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
  powerccl_journal_slot* slot = nullptr;
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i)
    ASSERT_EQ(journal_claim(&journal, ("GPU-" + std::to_string(i)).c_str(), &slot, &error), kOk);
  EXPECT_EQ(journal_claim(&journal, "GPU-more", &slot, &error), kJournalFull);
}

TEST_F(ClockJournal, RefusesNamesThatAreNone) {
  powerccl_journal_slot* slot = nullptr;
  EXPECT_EQ(journal_claim(&journal, "", &slot, &error), kBadArgument);
  EXPECT_EQ(journal_claim(&journal, std::string(48, 'x').c_str(), &slot, &error), kBadArgument);
}

TEST_F(ClockJournal, RefusesAFileThatIsNoJournal) {
  Journal other;
  journal.map->version += 1;
  EXPECT_EQ(journal_open(&other, folder.path().c_str(), &error), kJournalBad);
  std::ofstream(file(), std::ios::trunc) << "something else";
  EXPECT_EQ(journal_open(&other, folder.path().c_str(), &error), kJournalBad);
  EXPECT_EQ(other.map, nullptr);
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
