// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>

#include "agent_fixture.h"
#include "device/process.h"

using namespace powerccl::device;

namespace {

TEST_F(AgentTest, EndOfInputEndsIt) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  EXPECT_TRUE(agent.running());
  expect_end(agent);
}

TEST_F(AgentTest, SigtermEndsIt) {
  for (int number : {SIGTERM, SIGINT}) {
    AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
    ASSERT_TRUE(agent.wait_ready());
    agent.signal(number);
    EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
    EXPECT_GT(lines_of(power_file()).size(), 0u);
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
  expect_end(agent);
}

// A terminal or a batch system kills the launcher's whole process group. The agent writes its last samples and ends.
TEST_F(AgentTest, EndsByItselfWithItsKilledLauncher) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t launcher = fork();
  if (launcher == 0) {
    setpgid(0, 0);
    AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
    pid_t pid = agent.wait_ready() ? agent.pid() : -1;
    if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    for (;;) pause();
  }
  pid_t agent = -1;
  ASSERT_EQ(read(ends[0], &agent, sizeof agent), static_cast<ssize_t>(sizeof agent));
  ASSERT_GT(agent, 0);
  close(ends[0]);
  close(ends[1]);
  kill(-launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(eventually([&] { return process_start_ticks(agent) == 0; }));
  // One row of each GPU at the beginning, and one at the end, which a killed agent would not have written.
  EXPECT_GE(lines_of(power_file()).size(), 2u);
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

TEST_F(AgentTest, FolderThatCannotBeUsedIsSaidWithAHint) {
  AgentProcess agent("/nowhere/at/all", {});
  EXPECT_EQ(agent.wait_exit(), 1);
  EXPECT_NE(agent.messages().find("No such file or directory\nhint: "), std::string::npos) << agent.messages();
}

}  // namespace
