// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "agent/ticker.h"
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

// GPUs that hang or answer with errors: the others are sampled as if nothing were, and the agent ends in time.
namespace {

constexpr long kMs = 1'000'000;

class LostGpuTest : public AgentTest {
 protected:
  void SetUp() override {
    AgentTest::SetUp();
    fake->gpus = 3;
  }
  void hang(unsigned gpu, bool yes) { __atomic_store_n(&fake->gpu[gpu].hangs, yes ? 1 : 0, __ATOMIC_RELEASE); }
  std::vector<long> times_of(unsigned gpu) const {
    std::vector<long> times;
    for (auto& row : read_power_file(power_file()).rows)
      if (row["gpu"] == std::to_string(gpu)) times.push_back(std::stol(row["time_ns"]));
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end())) << gpu;
    return times;
  }
  // The longest time between two rows.
  static long longest_gap(const std::vector<long>& times) {
    long longest = 0;
    for (size_t i = 1; i < times.size(); ++i) longest = std::max(longest, times[i] - times[i - 1]);
    return longest;
  }
  // Waits for `more` rows of a GPU.
  bool goes_on(unsigned gpu, size_t more) {
    const size_t before = times_of(gpu).size();
    return eventually([&] { return times_of(gpu).size() >= before + more; });
  }
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

TEST_F(LostGpuTest, OneThatHangsDoesNotStopTheOthers) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "50"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  ASSERT_TRUE(goes_on(0, 3));
  hang(1, true);
  ASSERT_TRUE(goes_on(0, 20));
  ASSERT_TRUE(goes_on(2, 20));
  hang(1, false);
  ASSERT_TRUE(goes_on(1, 5)) << "a GPU that comes back is sampled again";
  expect_end(agent);
  EXPECT_GT(longest_gap(times_of(1)), 1000 * kMs);
  // Three periods are a gap. On a loaded machine the test's own threads are late too.
  EXPECT_LT(longest_gap(times_of(0)), 500 * kMs);
  EXPECT_LT(longest_gap(times_of(2)), 500 * kMs);
  EXPECT_EQ(agent.messages(), "") << "a hang of a second or two is no news";
}

TEST_F(LostGpuTest, TheEndWaitsForNoneOfThem) {
  for (const bool by_signal : {false, true}) {
    AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
    ASSERT_TRUE(agent.wait_ready());
    hang(0, true);
    hang(2, true);
    ASSERT_TRUE(goes_on(1, 50));
    timespec asked{};
    clock_gettime(CLOCK_MONOTONIC, &asked);
    const auto start = std::chrono::steady_clock::now();
    if (by_signal)
      agent.signal(SIGTERM);
    else
      agent.close_input();
    ASSERT_EQ(agent.wait_exit(), 0) << agent.messages();
    EXPECT_LT(seconds_since(start), 3) << "one second for the threads, the rest for a loaded machine";
    EXPECT_GE(times_of(1).back(), asked.tv_sec * 1000 * kMs + asked.tv_nsec) << "its last row is taken and written";
    EXPECT_TRUE(read_power_file(power_file()).whole);
    const std::string said = agent.messages();
    EXPECT_NE(said.find("GPU 0: an NVML call has not returned for "), std::string::npos) << said;
    EXPECT_NE(said.find("GPU 2: an NVML call has not returned for "), std::string::npos) << said;
    EXPECT_EQ(said.find("GPU 1"), std::string::npos) << said;
    hang(0, false);
    hang(2, false);
  }
}

TEST_F(LostGpuTest, OneThatHangsInTheLastReadTakesNoRowsOfTheOthers) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "10000"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  hang(0, true);
  agent.close_input();  // before the next tick: the last read is the first that hangs
  ASSERT_EQ(agent.wait_exit(), 0) << agent.messages();
  EXPECT_GE(times_of(1).size(), 2u);
  EXPECT_GE(times_of(2).size(), 2u);
}

TEST_F(LostGpuTest, OneThatHangsFromTheStartDelaysNobody) {
  hang(0, true);
  const auto start = std::chrono::steady_clock::now();
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  EXPECT_LT(seconds_since(start), 2.5) << "half a second, the rest for a loaded machine";
  EXPECT_FALSE(times_of(1).empty()) << "the first rows are there before `ready`";
  EXPECT_FALSE(times_of(2).empty());
  ASSERT_TRUE(goes_on(1, 20));
  hang(0, false);
  ASSERT_TRUE(goes_on(0, 20));
  expect_end(agent);
  PowerSamples samples = read_power_file(power_file());
  EXPECT_EQ(samples.about["gpu_count"], "3");
  EXPECT_EQ(samples.about["gpu2_power_limit_mw"], "60000");
  EXPECT_EQ(text_of(power_file()).find("# gpu0_uuid: "), text_of(power_file()).rfind("\n# gpu0_uuid: ") + 1)
      << "described once, when it answered";
}

TEST_F(LostGpuTest, AllOfThemHangingFromTheStartLeaveAReadableFile) {
  for (unsigned gpu : {0u, 1u, 2u}) hang(gpu, true);
  run_to_end({{}, {}, 0});
  PowerSamples samples = read_power_file(power_file());
  EXPECT_EQ(samples.about["gpu_count"], "3");
  EXPECT_TRUE(samples.rows.empty());
}

TEST_F(LostGpuTest, OneThatAnswersAgainIsSampledAgain) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  fake->gpu[0].lost = 1;
  ASSERT_TRUE(eventually([&] { return agent.messages().find("GPU 0 is not sampled: ") != std::string::npos; }));
  EXPECT_NE(agent.messages().find("fallen off the bus"), std::string::npos) << agent.messages();
  EXPECT_NE(agent.messages().find("\nhint: "), std::string::npos) << agent.messages();
  ASSERT_TRUE(goes_on(1, 20)) << "GPU 1 goes on";
  const size_t rows = times_of(0).size();
  fake->gpu[0].lost = 0;
  ASSERT_TRUE(goes_on(0, 20));
  expect_end(agent);
  EXPECT_GT(longest_gap(times_of(0)), 1000 * kMs) << "its absence is a gap";
  EXPECT_LT(longest_gap(times_of(1)), 500 * kMs);
  const std::string said = agent.messages();
  EXPECT_EQ(said.find("GPU 0 is not sampled"), said.rfind("GPU 0 is not sampled")) << said;
  EXPECT_NE(said.find("GPU 0 answers again after "), std::string::npos) << said;
  size_t seen = 0;
  for (auto& row : read_power_file(power_file()).rows)
    if (row["gpu"] == "0" && seen++ == rows) {
      EXPECT_NE(row["energy_uj"], "-1") << "the counter is known at both ends of the gap";
    }
}

TEST_F(LostGpuTest, OneLostForAMomentIsNoNews) {
  AgentProcess agent(folder.path(), {{"--interval-ms", "5"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  fake->gpu[0].lost = 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  fake->gpu[0].lost = 0;
  ASSERT_TRUE(goes_on(0, 20));
  expect_end(agent);
  EXPECT_EQ(agent.messages(), "");
}

TEST_F(LostGpuTest, ReadingsSlowerThanThreeIntervalsAreLeftOut) {
  fake->energy_read_us = 120'000;
  fake->gpus = 1;
  run_to_end({{"--interval-ms", "5"}, {}, 0});
  // Only the first and the last visit read such a dear counter. The moment of their values is not known.
  for (auto& row : read_power_file(power_file()).rows) EXPECT_EQ(row["energy_uj"], "-1");
}

}  // namespace
