// SPDX-License-Identifier: Apache-2.0
// What the agent sees of a job's processes: this process plays the launcher.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/job_processes.h"

using namespace powerccl::agent;

namespace {

class JobProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/powerccl-processes-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const pid_t pid : started_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  pid_t start(std::vector<const char*> command, std::vector<const char*> environment) {
    command.push_back(nullptr);
    environment.push_back(nullptr);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, command[0], nullptr, nullptr, const_cast<char* const*>(command.data()),
                          const_cast<char* const*>(environment.data())),
              0);
    started_.push_back(pid);
    return pid;
  }

  // Looks until the rows have the text.
  static bool comes(JobProcesses* processes, const std::string& text) {
    for (int tries = 0; tries < 1000; ++tries) {
      processes->look();
      if (processes->rows().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::string folder_;
  std::vector<pid_t> started_;
};

TEST_F(JobProcessesTest, TellsWhetherTheEnvironmentPreloads) {
  JobProcesses processes(folder_, getpid());
  start({"/bin/sleep", "60"}, {"A=1", "LD_PRELOAD=/nowhere/libpowerccl-mpi.so"});
  EXPECT_TRUE(comes(&processes, "process,sleep,1,0,0,0,0,0,1,1,1\n")) << processes.rows();
  start({"/bin/sleep", "60"}, {"A=1"});
  EXPECT_TRUE(comes(&processes, "process,sleep,1,0,0,0,0,0,0,1,1\n")) << processes.rows();
}

TEST_F(JobProcessesTest, KnowsProcessesThatHaveEndedAndChildrenOfChildren) {
  JobProcesses processes(folder_, getpid());
  const pid_t shell = start({"/bin/sh", "-c", "sleep 20 >&- 2>&- & wait"}, {"PATH=/usr/bin:/bin"});
  ASSERT_TRUE(comes(&processes, "process,sleep,1,")) << processes.rows();
  kill(shell, SIGKILL);
  waitpid(shell, nullptr, 0);
  started_.clear();
  processes.look();
  EXPECT_NE(processes.rows().find("process,sh,1,"), std::string::npos) << processes.rows();
  EXPECT_NE(processes.rows().find("process,sleep,1,"), std::string::npos) << processes.rows();
}

TEST_F(JobProcessesTest, HasNothingToTellOfARecordedJob) {
  JobProcesses processes(folder_, getpid());
  start({"/bin/sleep", "60"}, {});
  ASSERT_TRUE(comes(&processes, "process,sleep,1,"));
  std::ofstream(folder_ + "/rank-0.trace") << "x";
  EXPECT_EQ(processes.rows(), "");
}

TEST_F(JobProcessesTest, ItsThreadLooksAtOnceAndEnds) {
  JobProcesses processes(folder_, getpid());
  start({"/bin/sleep", "60"}, {});
  ASSERT_EQ(processes.start(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(processes.stop());
  EXPECT_NE(processes.rows().find("process,sleep,1,"), std::string::npos);
}

TEST(TraitsOf, AProcessThatIsGoneHasNone) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(traits_of(pid), 0u);
  EXPECT_EQ(traits_of(getpid()) & (kReadable | kDynamic | kMpi | kNccl), unsigned{kReadable | kDynamic});
}

}  // namespace
