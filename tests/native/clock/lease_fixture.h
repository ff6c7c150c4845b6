// SPDX-License-Identifier: Apache-2.0
// A lease client, the daemon that it speaks to, and what it says to the user.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../record/trace_reader.h"
#include "abi/lease.h"
#include "base/basics.h"
#include "base/log.h"
#include "clock/lease_client.h"

namespace powerccl::test {

// A lease daemon of one device that does as it is told, good manners or not.
enum class Manners {
  kGood,
  kWrongSize,
  kWrongMagic,
  kWrongVersion,
  kUnknownType,
  kUnterminated,
  kTooLong,
  kSerialAhead,   // answers what was not asked yet
  kSerialBehind,  // answers what was asked long ago
  kSilent,        // reads and says nothing
  kDeaf,          // does not even read
  kTalkative,     // says a lot unasked, and never what was asked
};

class FakePowerccld {
 public:
  explicit FakePowerccld(std::string path) : path_(std::move(path)) {}
  ~FakePowerccld() { stop(); }
  FakePowerccld(const FakePowerccld&) = delete;
  FakePowerccld& operator=(const FakePowerccld&) = delete;

  std::atomic<Manners> manners{Manners::kGood};        // of everything
  std::atomic<Manners> lease_manners{Manners::kGood};  // of SET and READ
  std::atomic<int> welcome_status{0}, acquire_status{0}, set_status{0}, answer_delay_ms{0};
  std::atomic<int> turns_away{0};  // with that status, instead of a welcome
  std::atomic<uint32_t> heartbeat_ms{3000}, interval_ms{0}, welcome_flags{0};
  std::string file;  // to be shown; empty: none

  // What has come.
  std::atomic<int> hellos{0}, acquires{0}, heartbeats{0}, releases{0}, ends{0};
  std::atomic<bool> file_seen{false};
  std::atomic<uint32_t> now_mhz{0};
  std::string run, device;
  std::vector<uint32_t> sets() {
    std::lock_guard guard(mutex_);
    return sets_;
  }

  void start() {
    unlink(path_.c_str());
    listening_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) abort();
    if (listen(listening_, 8) != 0) abort();
    stopping_ = false;
    thread_ = std::thread([this] { serve(); });
  }
  // As if killed; what it had set is undone.
  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    thread_.join();
    for (const int peer : peers_) close(peer);
    peers_.clear();
    close(listening_);
    unlink(path_.c_str());
    now_mhz = 0;
  }
  // Tells the holder that its lease is over.
  void end(int status) { end_with_ = status; }

 private:
  static constexpr int kNobodyEnds = 1 << 20;

  bool deaf() const { return manners == Manners::kDeaf || lease_manners == Manners::kDeaf; }

  void serve() {
    while (!stopping_) {
      std::vector<pollfd> waited = {{listening_, POLLIN, 0}};
      for (const int peer : peers_) waited.push_back({peer, static_cast<short>(deaf() ? 0 : POLLIN), 0});
      poll(waited.data(), waited.size(), 2);
      if (const int status = end_with_.exchange(kNobodyEnds); status != kNobodyEnds) {
        now_mhz = 0;
        for (const int peer : peers_) answer(peer, 0, POWERCCL_LEASE_ENDED, status, 0);
      }
      for (size_t i = 1; i < waited.size(); ++i) {
        const short heard = deaf() ? POLLHUP | POLLERR : POLLIN | POLLHUP | POLLERR;
        if ((waited[i].revents & heard) == 0) continue;
        if (!hear(waited[i].fd)) {
          ++ends;
          now_mhz = 0;
          close(waited[i].fd);
          std::erase(peers_, waited[i].fd);
        }
      }
      if ((waited[0].revents & POLLIN) != 0) peers_.push_back(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC));
    }
  }

  bool hear(int peer) {
    union {
      powerccl_lease_header header;
      powerccl_lease_hello hello;
      powerccl_lease_acquire acquire;
      powerccl_lease_set set;
    } message;
    iovec part = {&message, sizeof(message)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr envelope = {};
    envelope.msg_iov = &part;
    envelope.msg_iovlen = 1;
    envelope.msg_control = control;
    envelope.msg_controllen = sizeof(control);
    const ssize_t length = recvmsg(peer, &envelope, MSG_DONTWAIT);
    if (length <= 0) return false;
    if (message.header.magic != POWERCCL_LEASE_MAGIC || message.header.version != POWERCCL_LEASE_VERSION ||
        message.header.size != static_cast<size_t>(length) || message.header.serial == 0) {
      abort();  // the client under test has no manners
    }
    bool shown = false;
    if (const cmsghdr* attached = CMSG_FIRSTHDR(&envelope); attached != nullptr) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(attached), sizeof(got));
      struct stat theirs, ours;
      shown = fstat(got, &theirs) == 0 && stat(file.c_str(), &ours) == 0 && theirs.st_ino == ours.st_ino;
      file_seen = shown;
      close(got);
    }
    const uint64_t serial = message.header.serial;
    switch (message.header.type) {
      case POWERCCL_LEASE_HELLO:
        run = message.hello.run;
        ++hellos;
        if (turns_away != 0)
          answer(peer, 0, POWERCCL_LEASE_REPLY, turns_away, 0);
        else
          welcome(peer, serial);
        break;
      case POWERCCL_LEASE_ACQUIRE:
        device = message.acquire.device;
        if (!file.empty() && !shown) {
          answer(peer, serial, POWERCCL_LEASE_REPLY, POWERCCL_LEASE_SHOW_FILE, 0);
        } else {
          ++acquires;
          answer(peer, serial, POWERCCL_LEASE_REPLY, acquire_status, 0);
        }
        break;
      case POWERCCL_LEASE_SET: {
        if (answer_delay_ms > 0) usleep(static_cast<useconds_t>(answer_delay_ms) * 1000);
        std::lock_guard guard(mutex_);
        sets_.push_back(message.set.max_mhz);
        if (set_status == 0) now_mhz = message.set.max_mhz;
        answer(peer, serial, POWERCCL_LEASE_REPLY, set_status, now_mhz, lease_manners);
        if (lease_manners == Manners::kGood) answer(peer, 0, POWERCCL_LEASE_SETTLED, 0, now_mhz);
        break;
      }
      case POWERCCL_LEASE_READ:
        answer(peer, serial, POWERCCL_LEASE_REPLY, 0, now_mhz, lease_manners);
        break;
      case POWERCCL_LEASE_RELEASE:
        ++releases;
        answer(peer, serial, POWERCCL_LEASE_REPLY, 0, 0);
        break;
      case POWERCCL_LEASE_HEARTBEAT:
        ++heartbeats;
        answer(peer, serial, POWERCCL_LEASE_REPLY, 0, 0);
        break;
      default:
        abort();
    }
    return true;
  }

  void welcome(int peer, uint64_t serial) {
    powerccl_lease_welcome said = {};
    said.status = welcome_status;
    said.flags = welcome_flags;
    said.gpu_interval_ms = interval_ms;
    said.heartbeat_ms = heartbeat_ms;
    std::strcpy(said.server, "fake 1");
    if (manners == Manners::kUnterminated) std::memset(said.server, 'x', sizeof(said.server));
    send_as(manners, peer, &said.header, POWERCCL_LEASE_WELCOME, sizeof(said), serial);
  }
  void answer(int peer, uint64_t serial, uint16_t type, int status, uint32_t mhz, Manners how = Manners::kGood) {
    powerccl_lease_reply said = {};
    if (manners != Manners::kGood) how = manners;
    said.status = status;
    said.lease = status == 0 || type == POWERCCL_LEASE_ENDED ? 5 : 0;
    said.now_mhz = mhz;
    said.limit_mw = 70000;
    if (status == POWERCCL_LEASE_HELD) said.holder_pid = 4242, said.holder_uid = 1001;
    if (status == POWERCCL_LEASE_SHOW_FILE) file.copy(said.text, sizeof(said.text) - 1);
    if (status > 0) std::strcpy(said.text, "GPU is\nlost");
    if (how == Manners::kUnterminated) std::memset(said.text, 'x', sizeof(said.text));
    send_as(how, peer, &said.header, type, sizeof(said), serial);
  }
  void send_as(Manners how, int peer, powerccl_lease_header* message, uint16_t type, uint32_t size, uint64_t serial) {
    char wide[1000] = {};
    message->magic = how == Manners::kWrongMagic ? 0x20534554u : POWERCCL_LEASE_MAGIC;
    message->version = how == Manners::kWrongVersion ? 2 : POWERCCL_LEASE_VERSION;
    message->type = how == Manners::kUnknownType ? 99 : type;
    if (how == Manners::kWrongSize) size -= 8;
    if (how == Manners::kSerialAhead) serial += 1;
    if (how == Manners::kSerialBehind) serial -= serial > 1 ? 1 : 0;
    if (how == Manners::kSilent) return;
    if (how == Manners::kTalkative) message->type = POWERCCL_LEASE_SETTLED;
    message->size = how == Manners::kTooLong ? sizeof(wide) : size;
    if (how == Manners::kTalkative) message->size = sizeof(powerccl_lease_reply);
    message->serial = serial;
    std::memcpy(wide, message, size);
    const int count = how == Manners::kTalkative ? 100 : 1;
    for (int i = 0; i < count; ++i) send(peer, wide, message->size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const std::string path_;
  int listening_ = -1;
  std::vector<int> peers_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> end_with_{kNobodyEnds};
  std::mutex mutex_;
  std::vector<uint32_t> sets_;
};

constexpr uint64_t kSecond = 1000000000u;

class LeaseTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(said_, O_NONBLOCK), 0);
    log_to(said_[1]);
  }
  void TearDown() override {
    log_to(2);
    close(said_[0]);
    close(said_[1]);
  }
  std::string said() {
    std::string text(8192, '\0');
    const ssize_t got = read(said_[0], text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }
  int open(const char* run = "run-7") {
    socket_ = folder / "socket";
    terms.socket_path = socket_.c_str();
    terms.run = run;
    terms.debug = true;
    const char* advice = "";
    const int code = lease.open(terms, why, sizeof(why), &advice);
    hint = advice;
    return code;
  }
  int set(uint32_t mhz) { return client.set(mhz); }
  uint64_t grant() { return client.grant(); }
  // As the clock thread would, until `condition`.
  bool ticks_until(const std::function<bool()>& condition, uint64_t timeout_ns = 10 * kSecond) {
    for (const uint64_t end = monotonic_ns() + timeout_ns; monotonic_ns() < end;) {
      const uint64_t again_ns = client.tick();
      if (condition()) return true;
      usleep(static_cast<useconds_t>(std::min<uint64_t>(again_ns, 10000000u) / 1000));
    }
    return false;
  }
  static bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 10000; ++i) {
      if (condition()) return true;
      usleep(1000);
    }
    return false;
  }

  Folder folder;
  LeaseTerms terms{.device = "GPU-1"};
  FakePowerccld daemon{folder / "socket"};
  LeaseClient lease;
  ClockClient& client = lease;
  char why[256] = "";
  std::string hint;

 private:
  std::string socket_;
  int said_[2] = {-1, -1};
};

}  // namespace powerccl::test
