// SPDX-License-Identifier: Apache-2.0
// The agent and the clock actuator on the emulated GPU server, where a lock really changes something.
#include <signal.h>
#include <sys/wait.h>

#include <cmath>
#include <thread>

#include "../device/support.h"
#include "agent_process.h"
#include "device/nvml_clock.h"
#include "device/nvml_sample.h"
#include "device/process.h"
#include "power_samples.h"

using namespace powerccl::device;

namespace {

constexpr uint32_t kLockMhz = 900;  // above t4x8's idle clock, so that it shows without a load

class OnEmulator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static ScratchFolder scratch;
    socket_ = scratch.path() + "/gpus.sock";
    setenv("POWERCCL_EMULATOR_SOCKET", socket_.c_str(), 1);
    setenv("POWERCCL_NVML_LIBRARY", STAGE "/emulator/libnvidia-ml.so.1", 1);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    server_ = fork();
    if (server_ == 0) {
      dup2(ends[0], STDIN_FILENO);  // it lives as long as our end of this pipe
      execl(STAGE "/bin/powerccl-emulator", "powerccl-emulator", "--platform", STAGE "/share/platforms/t4x8.conf",
            "--socket", socket_.c_str(), nullptr);
      _exit(127);
    }
    close(ends[0]);
    ASSERT_TRUE(eventually([] { return sampling_open(&sampling_, nullptr) == kOk; }));
  }
  static void TearDownTestSuite() {
    sampling_close(&sampling_);
    kill(server_, SIGTERM);
    waitpid(server_, nullptr, 0);
  }
  void SetUp() override { ASSERT_EQ(journal_open(&journal, folder.path().c_str(), nullptr), kOk); }
  void TearDown() override { journal_close(&journal); }

  static int64_t now(Metric metric, unsigned gpu) {
    int64_t value = -1;
    EXPECT_EQ(sample(&sampling_, &sampling_.gpu[gpu], metric, &value, nullptr), kOk);
    return value;
  }
  powerccl_journal_slot slot(unsigned index) {
    powerccl_journal_slot found;
    journal_read_slot(&journal, index, &found);
    return found;
  }
  static bool locked(unsigned gpu) { return now(kSmClockMhz, gpu) == kLockMhz; }

  // A rank that locks its GPU's clock as the runtime does, `again` and again or once, until it is killed.
  pid_t start_locker(unsigned gpu, bool again) {
    pid_t child = fork();
    if (child != 0) return child;
    for (int fd = 3; fd < 256; ++fd) close(fd);
    Journal own;
    JournalClaim claim;
    ClockDevice clock;
    if (journal_open(&own, folder.path().c_str(), nullptr) != kOk ||
        journal_claim(&own, sampling_.gpu[gpu].uuid, &claim, nullptr) != kOk ||
        clock_open(&clock, sampling_.gpu[gpu].uuid, nullptr) != kOk || !clock_emulated(&clock))
      _exit(1);
    do {
      if (journal_mark(&claim, nullptr) != kOk) _exit(4);
      if (clock_lock(&clock, kLockMhz, kLockMhz, nullptr) != kOk) _exit(2);
      if (!again) break;
      if (clock_reset(&clock, nullptr) != kOk) _exit(3);
      journal_clear(&claim, nullptr);
    } while (true);
    for (;;) pause();
  }

  static std::string socket_;
  static pid_t server_;
  static Sampling sampling_;
  ScratchFolder folder;
  Journal journal;
};

std::string OnEmulator::socket_;
pid_t OnEmulator::server_ = -1;
Sampling OnEmulator::sampling_;

TEST_F(OnEmulator, SamplesAgreeWithTheServer) {
  ASSERT_EQ(sampling_.gpu_count, 8u);
  ASSERT_TRUE(sampling_.emulated);
  int64_t before = now(kEnergyUj, 3);
  AgentProcess agent(folder.path(), {});
  ASSERT_TRUE(agent.wait_ready()) << agent.messages();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  agent.close_input();
  ASSERT_EQ(agent.wait_exit(), 0) << agent.messages();
  int64_t after = now(kEnergyUj, 3);

  char host[64];
  host_name(host, sizeof host);
  PowerSamples samples = read_power_file(folder.path() + "/power-" + host + ".csv");
  EXPECT_TRUE(samples.whole);
  EXPECT_EQ(samples.about["emulated"], "1");
  EXPECT_EQ(samples.about["gpu_count"], "8");
  double integral_uj = 0;
  int64_t first_uj = -1;
  int64_t last_uj = -1;
  double last_s = 0;
  double last_w = 0;
  for (auto& row : samples.rows) {
    if (row["gpu"] != "3") continue;
    double seconds = std::stod(row["time_ns"]) * 1e-9;
    double watts = std::stod(row["power_mw"]) * 1e-3;
    if (last_s > 0) integral_uj += (seconds - last_s) * (watts + last_w) / 2 * 1e6;
    last_s = seconds;
    last_w = watts;
    if (row["energy_uj"] == "-1") continue;
    last_uj = std::stoll(row["energy_uj"]);
    if (first_uj < 0) first_uj = last_uj;
  }
  EXPECT_LE(before, first_uj);
  EXPECT_LE(last_uj, after);
  double counted_uj = static_cast<double>(last_uj - first_uj);
  EXPECT_GT(counted_uj, 1e6);
  // The counter moves every 20 ms, so either end may be off by one step of at most 20 mJ per watt.
  EXPECT_NEAR(integral_uj, counted_uj, 0.03 * counted_uj + 2 * 20e-3 * last_w * 1e6);
}

TEST_F(OnEmulator, KilledRankLeavesNoLock) {
  AgentProcess agent(folder.path(), {});
  ASSERT_TRUE(agent.wait_ready());
  pid_t rank = start_locker(1, false);
  ASSERT_TRUE(eventually([] { return locked(1); }));
  kill(rank, SIGKILL);
  waitpid(rank, nullptr, 0);
  EXPECT_TRUE(eventually([] { return !locked(1); }));
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
}

TEST_F(OnEmulator, RankKilledAtAnyMomentLeavesNoLock) {
  AgentProcess agent(folder.path(), {{"--no-sample"}, {}, 0});
  ASSERT_TRUE(agent.wait_ready());
  for (int round = 0; round < 20; ++round) {
    pid_t rank = start_locker(2, true);
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + 137 * round));
    kill(rank, SIGKILL);
    int status = 0;
    waitpid(rank, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    ASSERT_TRUE(eventually([&] { return slot(0).pid == 0; }));
  }
  agent.close_input();
  EXPECT_EQ(agent.wait_exit(), 0) << agent.messages();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(locked(2));
  EXPECT_GT(slot(0).restored_by_agent, 0u) << "no round hit a lock: the test shows nothing";
}

TEST_F(OnEmulator, LauncherKilledWithEverythingElse) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  pid_t launcher = fork();
  if (launcher == 0) {
    setpgid(0, 0);
    AgentProcess agent(folder.path(), {});
    pid_t rank = agent.wait_ready() ? start_locker(4, false) : -1;
    if (write(ends[1], &rank, sizeof rank) != sizeof rank) _exit(1);
    for (;;) pause();
  }
  pid_t rank = -1;
  ASSERT_EQ(read(ends[0], &rank, sizeof rank), static_cast<ssize_t>(sizeof rank));
  close(ends[0]);
  close(ends[1]);
  ASSERT_GT(rank, 0);
  EXPECT_TRUE(eventually([] { return locked(4); }));
  kill(-launcher, SIGKILL);  // rank and launcher at once
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(eventually([] { return !locked(4); }));
}

TEST_F(OnEmulator, NoRightToSetClocksIsReported) {
  setenv("POWERCCL_EMULATOR_MAY_SET_CLOCKS", "0", 1);
  ClockDevice clock;
  Error error;
  ASSERT_EQ(clock_open(&clock, sampling_.gpu[0].uuid, &error), kOk);
  EXPECT_EQ(clock_lock(&clock, kLockMhz, kLockMhz, &error), 4);
  EXPECT_STRNE(hint(error.code), "");
  clock_close(&clock);
  unsetenv("POWERCCL_EMULATOR_MAY_SET_CLOCKS");
  EXPECT_FALSE(locked(0));
}

}  // namespace
