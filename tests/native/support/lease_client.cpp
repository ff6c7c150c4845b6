// SPDX-License-Identifier: Apache-2.0
#include "lease_client.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace powerccl::leases {
namespace {

constexpr int64_t kPauseUs = 20'000;  // of one recv()

}  // namespace

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void sleep_us(int64_t us) {
  timespec time{us / 1'000'000, us % 1'000'000 * 1000};
  nanosleep(&time, nullptr);
}

int connect_to(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path.c_str(), std::min(socket_path.size(), sizeof address.sun_path - 1));
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

Client::Client(const std::string& socket, int64_t patience_ms)
    : patience_ms_(patience_ms), socket_(connect_to(socket)) {
  const timeval pause{0, kPauseUs};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause);
  auto hello = make_message<powerccl_lease_hello>(POWERCCL_LEASE_HELLO, 0);
  std::strcpy(hello.run, "test");
  ask(hello);
}

Client::~Client() {
  if (socket_ >= 0) close(socket_);
}

powerccl_lease_reply Client::acquire(const std::string& device, bool shares) {
  auto message = make_message<powerccl_lease_acquire>(POWERCCL_LEASE_ACQUIRE, 0);
  message.flags = shares ? POWERCCL_LEASE_SHARED : 0;
  std::strncpy(message.device, device.c_str(), sizeof message.device - 1);
  return ask(message);
}

bool Client::status(std::vector<powerccl_lease_device>* devices) {
  devices->clear();
  return ask(make_message<powerccl_lease_header>(POWERCCL_LEASE_STATUS, 0), devices).status != kNoAnswer;
}

powerccl_lease_reply Client::ask_about(uint16_t type, uint64_t lease, uint32_t mhz) {
  auto message = make_message<powerccl_lease_set>(type, 0);
  message.lease = lease;
  message.min_mhz = message.max_mhz = mhz;
  return ask(message);
}

template <typename Message>
powerccl_lease_reply Client::ask(Message message, std::vector<powerccl_lease_device>* devices) {
  powerccl_lease_reply reply{};
  reinterpret_cast<powerccl_lease_header&>(message).serial = ++serial_;
  const bool sent = socket_ >= 0 && send(socket_, &message, sizeof message, MSG_NOSIGNAL) > 0;
  while (sent) {
    alignas(8) char bytes[8192];
    const int64_t length = hear(bytes, sizeof bytes);
    if (length <= 0) break;
    reply = {};
    std::memcpy(&reply, bytes, std::min(static_cast<size_t>(length), sizeof reply));
    if (reply.header.type == POWERCCL_LEASE_DEVICE && length == sizeof(powerccl_lease_device) && devices != nullptr) {
      devices->emplace_back();
      std::memcpy(&devices->back(), bytes, sizeof(powerccl_lease_device));
    }
    const bool last = reply.header.type == POWERCCL_LEASE_REPLY || reply.header.type == POWERCCL_LEASE_WELCOME;
    if (last && reply.header.serial == serial_) return reply;
  }
  reply = {};
  reply.status = kNoAnswer;
  return reply;
}

int64_t Client::hear(void* bytes, size_t size) {
  for (Patience patience(patience_ms_);;) {
    const int64_t begin_ns = now_ns();
    const ssize_t length = recv(socket_, bytes, size, 0);
    if (length >= 0 || errno != EAGAIN) return length;
    patience.spend(kPauseUs, (now_ns() - begin_ns) / 1000);
    if (patience.over()) {
      hung_ = true;
      return -1;
    }
  }
}

}  // namespace powerccl::leases
