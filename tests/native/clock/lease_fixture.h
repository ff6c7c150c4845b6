// SPDX-License-Identifier: Apache-2.0
// A lease client, the daemon that it speaks to, and what it says to the user.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "../record/trace_reader.h"
#include "base/basics.h"
#include "base/log.h"
#include "clock/lease_client.h"
#include "fake_powerccld.h"

namespace powerccl::test {

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
