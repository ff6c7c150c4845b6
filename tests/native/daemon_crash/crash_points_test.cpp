// SPDX-License-Identifier: Apache-2.0
// powerccld killed at every point that matters, one after another, and started again: clocks must be usual at once, and
// nothing may be left behind in the state file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "lease_machine.h"

namespace {

using namespace powerccl::leases;

constexpr int64_t kHangMs = 30'000;
constexpr int64_t kUsualMs = 5000;
constexpr int kMostPoints = 500;  // a scenario that never runs through would go on for ever
const char* const kModes[] = {"before", "after", "torn"};

class CrashPoints : public testing::Test {
 protected:
  void SetUp() override {
    machine_ = std::make_unique<Machine>(POWERCCL_STAGE, "/dev/shm/powerccl-crash-" + std::to_string(getpid()));
    ASSERT_TRUE(machine_->up());
    std::FILE* file = std::fopen(machine_->config().c_str(), "we");
    ASSERT_NE(file, nullptr);
    std::fputs("[gpu]\ninterval_ms = 0\n", file);
    std::fclose(file);
  }

  bool start(const char* mode = nullptr, int at = 0) {
    std::vector<std::string> environment = machine_->environment();
    if (mode != nullptr) {
      environment.push_back("LD_PRELOAD=" CRASH_POINTS_LIBRARY);
      environment.push_back("POWERCCL_CRASH_STATE=" + machine_->state());
      environment.push_back("POWERCCL_CRASH_AT=" + std::to_string(at));
      environment.push_back(std::string("POWERCCL_CRASH_MODE=") + mode);
    }
    return daemon_.start(machine_->daemon_command(true), environment, machine_->path("daemon.log"), kHangMs);
  }

  // Everything a job does once, as far as the daemon lives.
  void do_the_scenario() {
    Client client(machine_->socket(), kHangMs);
    const uint64_t first = client.acquire(machine_->uuid(0)).lease;
    const auto set = [&](uint64_t lease, uint32_t mhz) { return lease != 0 && client.set(lease, mhz).status == 0; };
    set(first, 600) && set(first, 900) && set(first, 0) && set(first, 750);
    const uint64_t second = client.acquire(machine_->uuid(3)).lease;
    set(second, 1200);
    client.release(first);
    EXPECT_FALSE(client.hung()) << "no answer from a daemon that lives";
    daemon_.signal(SIGTERM);  // ends the second
  }

  // Whether the daemon ended as it should, and not by the crash that was planned.
  bool ran_through() {
    const int status = daemon_.running() ? daemon_.wait_end(kHangMs) : daemon_.status();
    EXPECT_TRUE(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) << "it ended with " << status;
    return status == 0;
  }

  // Nothing may be set that the next daemon would not know of.
  void expect_marked() {
    sleep_us(4000);  // the emulator changes the clock that long after the daemon's last message, later where it is busy
    EXPECT_TRUE(within(kUsualMs, [&] { return machine_->all_usual() || marks_in(machine_->state()) != 0; }))
        << machine_->clocks() << ", and the state file knows nothing of it";
  }

  void expect_recovery() {
    ASSERT_TRUE(start()) << "it does not start again, status " << daemon_.status();
    EXPECT_TRUE(within(kUsualMs, [&] { return machine_->all_usual(); })) << machine_->clocks();
    EXPECT_TRUE(within(kUsualMs, [&] { return marks_in(machine_->state()) == 0; })) << marks_in(machine_->state());
    daemon_.signal(SIGTERM);
    EXPECT_EQ(daemon_.wait_end(kHangMs), 0);
    EXPECT_TRUE(machine_->all_usual());
  }

  // A daemon that was killed while two clocks were set.
  void leave_clocks_set() {
    ASSERT_TRUE(start());
    Client client(machine_->socket(), kHangMs);
    ASSERT_EQ(client.set(client.acquire(machine_->uuid(1)).lease, 600).status, POWERCCL_LEASE_OK);
    ASSERT_EQ(client.set(client.acquire(machine_->uuid(6)).lease, 900).status, POWERCCL_LEASE_OK);
    daemon_.kill_hard();
    ASSERT_EQ(marks_in(machine_->state()), 2);
    ASSERT_TRUE(within(kUsualMs, [&] { return !machine_->locked(1).usual() && !machine_->locked(6).usual(); }));
  }

  // Starts a daemon that dies at each point of what it does in turn, until it has run through.
  template <typename Prepare, typename Act>
  void crash_at_each_point(int least, Prepare prepare, Act act) {
    int points = 0;
    for (const char* mode : kModes) {
      for (int at = 1;; ++at) {
        ASSERT_LT(at, kMostPoints);
        SCOPED_TRACE(std::string(mode) + " call " + std::to_string(at));
        ASSERT_NO_FATAL_FAILURE(prepare());
        if (start(mode, at)) act();
        if (ran_through()) {
          EXPECT_TRUE(within(kUsualMs, [&] { return machine_->all_usual(); })) << machine_->clocks();
          EXPECT_EQ(marks_in(machine_->state()), 0);
          break;
        }
        expect_marked();
        ASSERT_NO_FATAL_FAILURE(expect_recovery());
        if (HasFailure()) return;
        ++points;
      }
    }
    RecordProperty("points", points);
    std::printf("%d points of a crash tried\n", points);
    EXPECT_GT(points, least);
  }
  template <typename Prepare>
  void crash_in_recovery(Prepare prepare) {
    crash_at_each_point(5, prepare, [this] { daemon_.signal(SIGTERM); });
  }

  std::unique_ptr<Machine> machine_;
  Child daemon_;
};

TEST_F(CrashPoints, WhileItServes) {
  crash_at_each_point(50, [this] { unlink(machine_->state().c_str()); }, [this] { do_the_scenario(); });
}

TEST_F(CrashPoints, WhileItRecovers) {
  crash_in_recovery([this] { leave_clocks_set(); });
}

TEST_F(CrashPoints, WhileItRecoversFromATornSlot) {
  crash_in_recovery([this] {
    ASSERT_NO_FATAL_FAILURE(leave_clocks_set());
    const int fd = open(machine_->state().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(pwrite(fd, "torn", 4, 128 + 60), 4);  // within the first slot
    close(fd);
    ASSERT_EQ(marks_in(machine_->state()), -1);
  });
}

TEST_F(CrashPoints, WhileItRecoversFromADamagedFile) {
  crash_in_recovery([this] {
    ASSERT_NO_FATAL_FAILURE(leave_clocks_set());
    ASSERT_EQ(truncate(machine_->state().c_str(), 1000), 0);
  });
}

}  // namespace
