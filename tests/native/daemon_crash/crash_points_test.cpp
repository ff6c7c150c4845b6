// SPDX-License-Identifier: Apache-2.0
// powerccld killed at every point that matters, one after another, and started again: clocks must be usual at once, and
// nothing may be left behind in the state file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "machine.h"

namespace {

using namespace powerccl::leases;

constexpr int64_t kHangMs = 30'000;
constexpr int64_t kUsualMs = 5000;
constexpr int kMostPoints = 500;  // a scenario that never runs through would go on for ever
const char* const kModes[] = {"before", "after", "torn"};

// A client that waits for each answer.
class Session {
 public:
  explicit Session(const std::string& path) : socket_(connect_to(path)) {
    ask(make_message<powerccl_lease_hello>(POWERCCL_LEASE_HELLO, 0));
  }
  ~Session() {
    if (socket_ >= 0) close(socket_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The lease, or 0: the daemon is gone, or refused.
  uint64_t acquire(const std::string& device) {
    auto message = make_message<powerccl_lease_acquire>(POWERCCL_LEASE_ACQUIRE, 0);
    snprintf(message.device, sizeof message.device, "%s", device.c_str());
    return ask(message) ? answer_.lease : 0;
  }
  bool set(uint64_t lease, uint32_t mhz) { return ask_about(POWERCCL_LEASE_SET, lease, mhz); }
  bool release(uint64_t lease) { return ask_about(POWERCCL_LEASE_RELEASE, lease, 0); }

 private:
  bool ask_about(uint16_t type, uint64_t lease, uint32_t mhz) {
    auto message = make_message<powerccl_lease_set>(type, 0);
    message.lease = lease;
    message.min_mhz = message.max_mhz = mhz;
    return lease != 0 && ask(message);
  }

  template <typename Message>
  bool ask(Message message) {
    if (socket_ < 0) return false;
    reinterpret_cast<powerccl_lease_header&>(message).serial = ++serial_;
    if (send(socket_, &message, sizeof message, MSG_NOSIGNAL) < 0) return false;
    for (;;) {
      pollfd entry{socket_, POLLIN, 0};
      if (poll(&entry, 1, kHangMs) <= 0) {
        ADD_FAILURE() << "no answer from a daemon that lives";
        return false;
      }
      alignas(8) char bytes[4200];
      if (recv(socket_, bytes, sizeof bytes, 0) <= 0) return false;
      std::memcpy(&answer_, bytes, sizeof answer_);
      if (answer_.header.serial != serial_) continue;
      if (answer_.header.type == POWERCCL_LEASE_WELCOME) return true;
      return answer_.status == POWERCCL_LEASE_OK;
    }
  }

  int socket_;
  uint64_t serial_ = 0;
  powerccl_lease_reply answer_{};
};

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
    Session session(machine_->socket());
    const uint64_t first = session.acquire(machine_->uuid(0));
    session.set(first, 600) && session.set(first, 900) && session.set(first, 0) && session.set(first, 750);
    const uint64_t second = session.acquire(machine_->uuid(3));
    session.set(second, 1200);
    session.release(first);
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
    Session session(machine_->socket());
    ASSERT_TRUE(session.set(session.acquire(machine_->uuid(1)), 600));
    ASSERT_TRUE(session.set(session.acquire(machine_->uuid(6)), 900));
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
