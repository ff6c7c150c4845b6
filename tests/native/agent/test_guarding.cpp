// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "agent_fixture.h"
#include "device/core_clock.h"

using namespace powerccl::device;

namespace {

TEST_F(AgentTest, KilledMarkerIsRestoredAndItsSlotFreed) {
  AgentProcess agent(folder.path(), {});
  ASSERT_TRUE(agent.wait_ready());
  Rank killed(folder.path(), core(1), true);
  Rank other(folder.path(), core(0), true);
  lower(1);
  lower(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(lowered(1)) << "a living rank's clock is left alone";
  killed.kill_hard();
  ASSERT_TRUE(eventually([&] { return restored(1); }));
  ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_DEFAULT));
  EXPECT_EQ(slot(0).restored_by_agent, 1u);
  EXPECT_TRUE(lowered(0)) << "the other rank lives";
  other.kill_hard();
  EXPECT_TRUE(eventually([&] { return restored(0); }));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_NE(agent.messages().find(core(1) + " lowered: restored"), std::string::npos) << agent.messages();
}

TEST_F(AgentTest, CoreOfAnUnmarkedRankIsLeftAlone) {
  lower(0);  // by somebody else
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), core(0), false);
  rank.kill_hard();
  ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_TRUE(lowered(0));
}

TEST_F(AgentTest, RankKilledAtAnyMomentLeavesNoLoweredCore) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  for (int round = 0; round < 20; ++round) {
    const pid_t rank = fork();
    if (rank == 0) {
      for (int fd = 3; fd < 256; ++fd) close(fd);
      Journal own;
      JournalClaim claim;
      if (journal_open(&own, folder.path().c_str(), nullptr) != kOk) _exit(1);
      if (journal_claim(&own, core(0).c_str(), &claim, nullptr) != kOk) _exit(2);
      CoreClock clock;
      clock.cpu = 0;
      clock.lowest_khz = kLowestKhz;
      snprintf(clock.sysfs_cores, sizeof clock.sysfs_cores, "%s/devices/system/cpu", sysfs_root.path().c_str());
      clock.usual_khz = kUsualKhz;
      for (;;) {
        if (journal_mark(&claim, nullptr) != kOk || core_clock_lower(&clock, nullptr) != kOk) _exit(3);
        if (core_clock_restore(&clock, nullptr) != kOk) _exit(4);
        journal_clear(&claim, nullptr);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + 137 * round));
    kill(rank, SIGKILL);
    int status = 0;
    waitpid(rank, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
    ASSERT_TRUE(restored(0));
  }
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  EXPECT_GT(slot(0).restored_by_agent, 0u) << "no round hit a lowered core: the test shows nothing";
}

// As a job in a container beside an agent outside of it.
TEST_F(AgentTest, RankInAPidNamespaceIsGuarded) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), core(0), true, Rank::Namespace::kOwn);
  ASSERT_EQ(slot(0).pid, 1u);
  lower(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(lowered(0)) << "it lives";
  rank.kill_hard();
  EXPECT_TRUE(eventually([&] { return restored(0); }));
}

// Somebody cuts the journal short under a living rank: it is left alone, and restored when it dies.
TEST_F(AgentTest, CutJournalLeavesNoCoreLowered) {
  for (const auto of : {Rank::Namespace::kOurs, Rank::Namespace::kOwn}) {
    AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
    ASSERT_TRUE(agent.wait_ready());
    Rank rank(folder.path(), core(0), true, of);
    lower(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::filesystem::resize_file(journal.path, 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(lowered(0)) << "it lives";
    rank.kill_hard();
    EXPECT_TRUE(eventually([&] { return restored(0); }));
    agent.close_input();
    EXPECT_EQ(agent.wait_exit(), 0);
    std::filesystem::remove(journal.path);
  }
}

TEST_F(AgentTest, MarkOfARankThatDiedBeforeTheAgentCameIsUndone) {
  {
    Rank rank(folder.path(), core(0), true);
    lower(0);
  }
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  EXPECT_TRUE(eventually([&] { return restored(0); }));
}

TEST_F(AgentTest, EndOfInputWaitsForTheRanks) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), core(0), false);  // not marked: but it may lock yet
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  agent.close_input();
  size_t rows = lines_of(power_file()).size();
  ASSERT_TRUE(eventually([&] { return lines_of(power_file()).size() > rows; })) << "samples as long as the job lives";
  EXPECT_TRUE(agent.running());
  powerccl_journal_slot marked = slot(0);
  marked.state = POWERCCL_CLOCK_LOCKED;
  ASSERT_EQ(journal_write_slot(&journal, 0, marked, nullptr), kOk);
  lower(0);
  rank.kill_hard();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_TRUE(restored(0));
}

TEST_F(AgentTest, SigtermEndsSamplingAndKeepsGuarding) {
  for (int number : {SIGTERM, SIGINT}) {
    AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
    ASSERT_TRUE(agent.wait_ready());
    Rank rank(folder.path(), core(0), true);
    lower(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    agent.signal(number);
    ASSERT_TRUE(eventually([&] { return agent.messages().find("waiting for process") != std::string::npos; }));
    EXPECT_TRUE(agent.running());
    EXPECT_TRUE(lowered(0));
    rank.kill_hard();
    EXPECT_EQ(agent.wait_exit(), 0);
    EXPECT_TRUE(restored(0));
  }
}

// `powerccl run` starts it so: what is sent to every process of a job is meant for the job.
TEST_F(AgentTest, OutlivesSignalsThatWereBlockedWhenItStarted) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(agent.wait_ready());
  for (int number = 1; number <= SIGRTMAX; ++number)
    if (sigismember(&all, number) == 1 && number != SIGKILL && number != SIGSTOP) agent.signal(number);
  const size_t rows = lines_of(power_file()).size();
  ASSERT_TRUE(eventually([&] { return lines_of(power_file()).size() > rows; })) << "it samples on";
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0);
}

// The launcher's whole process group is killed, as a terminal or a batch system does it; a rank in another group lives.
TEST_F(AgentTest, OutlivesItsKilledLauncher) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t launcher = fork();
  if (launcher == 0) {
    setpgid(0, 0);
    AgentProcess agent(folder.path(), {});
    pid_t pid = agent.wait_ready() ? agent.pid() : -1;
    if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    for (;;) pause();
  }
  pid_t agent = -1;
  ASSERT_EQ(read(ends[0], &agent, sizeof agent), static_cast<ssize_t>(sizeof agent));
  ASSERT_GT(agent, 0);
  close(ends[0]);
  close(ends[1]);
  Rank rank(folder.path(), core(0), true);
  lower(0);
  kill(-launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NE(process_start_ticks(agent), 0u) << "it guards on";
  rank.kill_hard();
  EXPECT_TRUE(eventually([&] { return restored(0); }));
  EXPECT_TRUE(eventually([&] { return process_start_ticks(agent) == 0; })) << "and ends with the last rank";
}

TEST_F(AgentTest, SecondAgentOfANodeLeavesItToTheFirst) {
  AgentProcess first(folder.path(), {});
  ASSERT_TRUE(first.wait_ready());
  AgentProcess second(folder.path(), {});
  EXPECT_EQ(second.wait_exit(), 0);
  EXPECT_NE(second.messages().find("another agent already serves"), std::string::npos) << second.messages();
  EXPECT_TRUE(first.running());
  ScratchFolder elsewhere;
  AgentProcess other_run(elsewhere.path(), {});
  EXPECT_TRUE(other_run.wait_ready()) << "another run's agent is no rival";
}

TEST_F(AgentTest, WhatCannotBeRestoredYetIsTriedAgain) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), core(0), true);
  lower(0);
  std::filesystem::rename(cpufreq(0), cpufreq(0) + ".off");
  rank.kill_hard();
  EXPECT_TRUE(eventually([&] {
    return agent.messages().find("cannot be restored yet: cannot write cpufreq of cpu0") != std::string::npos;
  })) << agent.messages();
  std::filesystem::rename(cpufreq(0) + ".off", cpufreq(0));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  EXPECT_TRUE(restored(0));
}

TEST_F(AgentTest, WhatCanNeverBeRestoredIsReportedAndKeptInTheJournal) {
  std::filesystem::remove_all(cpufreq(0));
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), core(0), true);
  rank.kill_hard();
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 1);
  EXPECT_NE(agent.messages().find("giving up"), std::string::npos) << agent.messages();
  EXPECT_NE(agent.messages().find("\nhint: as root: powerccl-agent --restore-all"), std::string::npos);
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
}

TEST_F(AgentTest, FolderThatCannotBeUsedIsSaidWithAHint) {
  AgentProcess agent("/nowhere/at/all", {});
  EXPECT_EQ(agent.wait_exit(), 1);
  EXPECT_NE(agent.messages().find("No such file or directory\nhint: "), std::string::npos) << agent.messages();
}

TEST_F(AgentTest, RestoreAllRestoresWhatIsMarked) {
  {
    Rank rank(folder.path(), core(1), true);
    lower(1);
  }
  lower(0);  // by somebody else
  int code = -1;
  EXPECT_EQ(run_agent({"--restore-all", "--run-folder", folder.path()}, &code), core(1) + ": restored\n");
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(restored(1));
  EXPECT_TRUE(lowered(0)) << "an unmarked core is nobody's business";
  EXPECT_EQ(run_agent({"--restore-all", "--run-folder", folder.path()}, &code), "no clock is marked as set\n");
}

TEST_F(AgentTest, RestoreAllLeavesALivingRanksCore) {
  for (const auto of : {Rank::Namespace::kOurs, Rank::Namespace::kOwn}) {
    Rank rank(folder.path(), core(1), true, of);
    lower(1);
    int code = -1;
    std::string errors;
    EXPECT_EQ(run_agent({"--restore-all", "--run-folder", folder.path()}, &code, &errors), "");
    EXPECT_EQ(code, 1);
    EXPECT_NE(errors.find("not restored, because process "), std::string::npos) << errors;
    EXPECT_TRUE(lowered(1));
    rank.kill_hard();
    EXPECT_EQ(run_agent({"--restore-all", "--run-folder", folder.path()}, &code), core(1) + ": restored\n");
    EXPECT_TRUE(restored(1));
  }
}

TEST_F(AgentTest, RestoreAllReportsWhatItCannotDo) {
  {
    Rank rank(folder.path(), core(1), true);
  }
  std::filesystem::remove_all(cpufreq(1));
  int code = -1;
  std::string errors;
  run_agent({"--restore-all", "--run-folder", folder.path()}, &code, &errors);
  EXPECT_EQ(code, 1);
  EXPECT_NE(errors.find("cannot be restored: cannot write cpufreq of cpu1"), std::string::npos) << errors;
  run_agent({"--restore-all", "--run-folder", "/nowhere"}, &code, &errors);
  EXPECT_EQ(code, 1);
  EXPECT_NE(errors.find("\nhint: "), std::string::npos) << errors;
}

}  // namespace
