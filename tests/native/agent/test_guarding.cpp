// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "agent_fixture.h"
#include "device/nvml_clock.h"

using namespace powerccl::device;

namespace {

TEST_F(AgentTest, KilledMarkerIsRestoredAndItsSlotFreed) {
  AgentProcess agent(folder.path(), {});
  ASSERT_TRUE(agent.wait_ready());
  Rank killed(folder.path(), fake_uuid(1), true);
  Rank other(folder.path(), fake_uuid(0), true);
  lock_as(killed, 1);
  lock_as(other, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(unlocked(1)) << "a living rank's lock is left alone";
  killed.kill_hard();
  ASSERT_TRUE(eventually([&] { return unlocked(1); }));
  ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_DEFAULT));
  EXPECT_EQ(slot(0).restored_by_agent, 1u);
  EXPECT_FALSE(unlocked(0)) << "the other rank lives";
  EXPECT_EQ(fake->gpu[0].resets, 0u);
  other.kill_hard();
  EXPECT_TRUE(eventually([&] { return unlocked(0); }));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_NE(agent.messages().find(fake_uuid(1) + " locked: reset"), std::string::npos) << agent.messages();
}

// A rank that locks and resets its clock over and over, as the runtime does, until it is killed.
pid_t start_locker(const std::string& folder, const std::string& uuid) {
  const pid_t child = fork();
  if (child != 0) return child;
  for (int fd = 3; fd < 256; ++fd) close(fd);
  Journal own;
  JournalClaim claim;
  ClockDevice clock;
  if (journal_open(&own, folder.c_str(), nullptr) != kOk || journal_claim(&own, uuid.c_str(), &claim, nullptr) != kOk ||
      clock_open(&clock, uuid.c_str(), nullptr) != kOk)
    _exit(1);
  for (;;) {
    if (journal_mark(&claim, nullptr) != kOk || clock_lock(&clock, 480, 480, nullptr) != kOk) _exit(2);
    if (clock_reset(&clock, nullptr) != kOk) _exit(3);
    journal_clear(&claim, nullptr);
  }
}

TEST_F(AgentTest, RankKilledAtAnyMomentLeavesNoLock) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  for (useconds_t round = 0; round < 20; ++round) {
    const uint32_t before = __atomic_load_n(&fake->gpu[0].locks, __ATOMIC_ACQUIRE);
    const pid_t rank = start_locker(folder.path(), fake_uuid(0));
    ASSERT_TRUE(eventually([&] { return __atomic_load_n(&fake->gpu[0].locks, __ATOMIC_ACQUIRE) > before; }));
    usleep(137 * round);
    kill(rank, SIGKILL);
    int status = 0;
    waitpid(rank, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
    EXPECT_TRUE(unlocked(0)) << "before the slot is free";
  }
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  EXPECT_GT(slot(0).restored_by_agent, 0u) << "no round hit a lock: the test shows nothing";
}

TEST_F(AgentTest, UnmarkedRankThatDiesCostsNoReset) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), fake_uuid(0), false);
  rank.kill_hard();
  ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_EQ(fake->gpu[0].resets, 0u);
}

TEST_F(AgentTest, MarkOfARankThatDiedBeforeTheAgentCameIsUndone) {
  {
    Rank rank(folder.path(), fake_uuid(0), true);
    lock_as(rank, 0);
  }
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  EXPECT_TRUE(eventually([&] { return unlocked(0); }));
}

TEST_F(AgentTest, EndOfInputWaitsForTheRanks) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), fake_uuid(0), false);  // not marked: but it may lock yet
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  agent.close_input();
  size_t rows = lines_of(power_file()).size();
  ASSERT_TRUE(eventually([&] { return lines_of(power_file()).size() > rows; })) << "samples as long as the job lives";
  EXPECT_TRUE(agent.running());
  powerccl_journal_slot marked = slot(0);
  marked.state = POWERCCL_CLOCK_LOCKED;
  ASSERT_EQ(journal_write_slot(&journal, 0, marked, nullptr), kOk);
  lock_as(rank, 0);
  rank.kill_hard();
  EXPECT_EQ(agent.wait_exit(), 0);
  EXPECT_TRUE(unlocked(0));
}

TEST_F(AgentTest, SigtermEndsSamplingAndKeepsGuarding) {
  for (int number : {SIGTERM, SIGINT}) {
    AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
    ASSERT_TRUE(agent.wait_ready());
    Rank rank(folder.path(), fake_uuid(0), true);
    lock_as(rank, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    agent.signal(number);
    ASSERT_TRUE(eventually([&] { return agent.messages().find("waiting for process") != std::string::npos; }));
    EXPECT_TRUE(agent.running());
    EXPECT_FALSE(unlocked(0));
    rank.kill_hard();
    EXPECT_EQ(agent.wait_exit(), 0);
    EXPECT_TRUE(unlocked(0));
  }
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
  Rank rank(folder.path(), fake_uuid(0), true);
  lock_as(rank, 0);
  kill(-launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NE(process_start_ticks(agent), 0u) << "it guards on";
  rank.kill_hard();
  EXPECT_TRUE(eventually([&] { return unlocked(0); }));
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

TEST_F(AgentTest, DryNeverCallsASetter) {
  for (const AgentOptions& options :
       {AgentOptions{{"--clocks", "dry"}, {}, 0}, AgentOptions{{"--clocks", "nvml"}, {"POWERCCL_CLOCKS=dry"}, 0}}) {
    AgentProcess agent(folder.path(), options);
    ASSERT_TRUE(agent.wait_ready());
    Rank rank(folder.path(), fake_uuid(0), true);
    rank.kill_hard();
    ASSERT_TRUE(eventually([&] { return agent.messages().find("clocks are dry here") != std::string::npos; }));
    agent.close_input();
    EXPECT_EQ(agent.wait_exit(), 1) << "a GPU may be left locked";
    EXPECT_EQ(fake->gpu[0].resets + fake->gpu[0].locks, 0u);
    EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED)) << "the mark is kept";
  }
}

TEST_F(AgentTest, FailedResetIsTriedAgain) {
  fake->result[kFakeReset] = 999;
  fake->fail_only[kFakeReset] = 2;
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), fake_uuid(0), true);
  lock_as(rank, 0);
  rank.kill_hard();
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  EXPECT_TRUE(unlocked(0));
  EXPECT_NE(agent.messages().find("cannot be reset yet: resetting the clock: unknown driver error"), std::string::npos)
      << agent.messages();
}

TEST_F(AgentTest, ResetThatNeverWorksIsReportedAndKeptInTheJournal) {
  fake->gpu[0].lost = 1;
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  Rank rank(folder.path(), fake_uuid(0), true);
  rank.kill_hard();
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 1);
  EXPECT_NE(agent.messages().find("giving up"), std::string::npos) << agent.messages();
  EXPECT_NE(agent.messages().find("\nhint: as root: nvidia-smi --reset-gpu-clocks"), std::string::npos);
  EXPECT_EQ(slot(0).state, static_cast<uint32_t>(POWERCCL_CLOCK_LOCKED));
}

TEST_F(AgentTest, FolderThatCannotBeUsedIsSaidWithAHint) {
  AgentProcess agent("/nowhere/at/all", {});
  EXPECT_EQ(agent.wait_exit(), 1);
  EXPECT_NE(agent.messages().find("No such file or directory\nhint: "), std::string::npos) << agent.messages();
}

TEST_F(AgentTest, RestoreAllResetsWhatIsMarked) {
  {
    Rank rank(folder.path(), fake_uuid(1), true);
    lock_as(rank, 1);
  }
  int code = -1;
  std::string output = run_agent({"--restore-all", "--run-folder", folder.path(), "--clocks", "dry"}, &code);
  EXPECT_EQ(code, 0);
  EXPECT_NE(output.find("left so (dry)"), std::string::npos) << output;
  EXPECT_FALSE(unlocked(1));
  output = run_agent({"--restore-all", "--run-folder", folder.path()}, &code);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(output, fake_uuid(1) + ": reset\n");
  EXPECT_TRUE(unlocked(1));
  EXPECT_EQ(fake->gpu[0].resets, 0u) << "an unmarked GPU is nobody's business";
  EXPECT_EQ(run_agent({"--restore-all", "--run-folder", folder.path()}, &code), "no clock is marked as set\n");
}

TEST_F(AgentTest, RestoreAllReportsWhatItCannotDo) {
  {
    Rank rank(folder.path(), fake_uuid(1), true);
  }
  fake->result[kFakeReset] = 4;
  int code = -1;
  std::string errors;
  run_agent({"--restore-all", "--run-folder", folder.path()}, &code, &errors);
  EXPECT_EQ(code, 1);
  EXPECT_NE(errors.find("no permission"), std::string::npos) << errors;
  EXPECT_NE(errors.find("\nhint: run as root"), std::string::npos) << errors;
  run_agent({"--restore-all", "--run-folder", "/nowhere"}, &code, &errors);
  EXPECT_EQ(code, 1);
  EXPECT_NE(errors.find("\nhint: "), std::string::npos) << errors;
}

}  // namespace
