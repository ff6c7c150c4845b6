// SPDX-License-Identifier: Apache-2.0
// The lease protocol as tests and benchmarks speak it to a powerccld.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "abi/lease.h"

namespace powerccl::leases {

int64_t now_ns();
void sleep_us(int64_t us);

// Time waited, as far as it was waiting: a pause that took far longer than asked for means that the machine stood
// still, for the daemon as well as for us, and is no fault of the daemon's.
class Patience {
 public:
  explicit Patience(int64_t ms) : left_us_(ms * 1000) {}
  // Between two pauses.
  void spend(int64_t asked_us, int64_t took_us) {
    left_us_ -= took_us < 3 * asked_us + 1000 ? took_us : 3 * asked_us + 1000;
  }
  bool over() const { return left_us_ <= 0; }

 private:
  int64_t left_us_;
};

template <typename Message>
Message make_message(uint16_t type, uint64_t serial) {
  Message message{};
  auto& header = reinterpret_cast<powerccl_lease_header&>(message);
  header.magic = POWERCCL_LEASE_MAGIC;
  header.version = POWERCCL_LEASE_VERSION;
  header.type = type;
  header.size = sizeof message;
  header.serial = serial;
  return message;
}

// A connected socket, or -1.
int connect_to(const std::string& socket);

// One session that waits for each answer. Where the daemon has gone or does not answer in time, the status of a reply
// is kNoAnswer.
class Client {
 public:
  static constexpr int32_t kNoAnswer = INT32_MIN;

  explicit Client(const std::string& socket, int64_t patience_ms = 30'000);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  powerccl_lease_reply acquire(const std::string& device, bool shares = false);
  powerccl_lease_reply set(uint64_t lease, uint32_t mhz) { return ask_about(POWERCCL_LEASE_SET, lease, mhz); }
  powerccl_lease_reply release(uint64_t lease) { return ask_about(POWERCCL_LEASE_RELEASE, lease, 0); }
  // False: no whole answer.
  bool status(std::vector<powerccl_lease_device>* devices);

  bool connected() const { return socket_ >= 0; }
  // Whether a daemon that was still connected did not answer in time.
  bool hung() const { return hung_; }

 private:
  powerccl_lease_reply ask_about(uint16_t type, uint64_t lease, uint32_t mhz);
  template <typename Message>
  powerccl_lease_reply ask(Message message, std::vector<powerccl_lease_device>* devices = nullptr);
  int64_t hear(void* bytes, size_t size);

  const int64_t patience_ms_;
  int socket_;
  bool hung_ = false;
  uint64_t serial_ = 0;
};

}  // namespace powerccl::leases
