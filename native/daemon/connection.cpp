// SPDX-License-Identifier: Apache-2.0
#include "daemon/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace powerccl::daemon {
namespace {

constexpr size_t kLongestRequest = 256;
constexpr size_t kMostFiles = 8;
constexpr size_t kMostUnsent = 4096;  // a status of many devices is a burst

// What came along with a message.
void read_ancillary(msghdr* message, Fd* file, ucred* sender) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_CREDENTIALS && part->cmsg_len == CMSG_LEN(sizeof *sender))
      std::memcpy(sender, CMSG_DATA(part), sizeof *sender);
    if (part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(part) + i * sizeof(int), sizeof passed);
      Fd held(passed);
      if (file->get() < 0) *file = std::move(held);
    }
  }
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Fd::Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Connection::Connection(int socket, Peer peer) : socket_(socket), peer_(std::move(peer)) {}

Connection::~Connection() {
  close(socket_);
  if (peer_.pidfd >= 0) close(peer_.pidfd);
}

Received Connection::receive() {
  Received received;
  char bytes[kLongestRequest];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int) * kMostFiles)];
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0) {
    received.kind = errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
    return received;
  }
  ucred sender{-1, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  read_ancillary(&message, &received.file, &sender);
  // An empty message and the end look alike, and neither is one of ours.
  if (length == 0) {
    received.kind = Received::kEnd;
  } else if (sender.pid != peer_.pid || sender.uid != peer_.uid) {
    received.kind = Received::kForeign;
  } else if ((message.msg_flags & MSG_TRUNC) != 0 || !decode(bytes, static_cast<size_t>(length), &received.request)) {
    received.kind = Received::kNonsense;
  } else {
    received.kind = Received::kMessage;
  }
  return received;
}

bool Connection::has_unsent() const {
  const std::lock_guard lock(mutex_);
  return !unsent_.empty();
}

bool Connection::send(Bytes message) {
  const std::lock_guard lock(mutex_);
  if (unsent_.size() >= kMostUnsent) return false;
  unsent_.push_back(std::move(message));
  return flush_locked();
}

bool Connection::flush() {
  const std::lock_guard lock(mutex_);
  return flush_locked();
}

bool Connection::flush_locked() {
  while (!unsent_.empty()) {
    const Bytes& message = unsent_.front();
    const ssize_t sent = ::send(socket_, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    unsent_.pop_front();
  }
  return true;
}

}  // namespace powerccl::daemon
