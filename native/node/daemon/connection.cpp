// SPDX-License-Identifier: Apache-2.0
#include "daemon/connection.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace powerccl::daemon {
namespace {

constexpr size_t kMostThreads = 64;  // users whose descriptors can hang at a time; the unit allows 128 tasks

struct Waiting {
  std::deque<int> descriptors;
  bool served = false;  // has a thread
};

struct Closer {
  std::mutex mutex;
  std::map<uid_t, Waiting> users;
  size_t threads = 0;
};

// Never destroyed: its threads may outlive main().
Closer& closer() {
  static auto* const made = new Closer;
  return *made;
}

std::map<uid_t, Waiting>::iterator find_unserved(Closer* all) {
  auto at = all->users.begin();
  while (at != all->users.end() && at->second.served) ++at;
  return at;
}

void serve() {
  pthread_setname_np(pthread_self(), "powerccld-close");
  Closer& all = closer();
  std::unique_lock lock(all.mutex);
  for (auto user = find_unserved(&all); user != all.users.end(); user = find_unserved(&all)) {
    user->second.served = true;
    while (!user->second.descriptors.empty()) {
      const int fd = user->second.descriptors.front();
      lock.unlock();
      close(fd);
      lock.lock();
      user->second.descriptors.pop_front();
    }
    all.users.erase(user);
  }
  --all.threads;
}

}  // namespace

void close_later(uid_t uid, int fd) {
  Closer& all = closer();
  const std::lock_guard lock(all.mutex);
  Waiting& user = all.users[uid];
  user.descriptors.push_back(fd);
  if (user.served || all.threads >= kMostThreads) return;
  ++all.threads;
  try {
    std::thread(serve).detach();
  } catch (const std::system_error&) {
    --all.threads;  // the next call tries again
  }
}

void close_socket(uid_t uid, int socket) {
  shutdown(socket, SHUT_RDWR);
  msghdr message{};
  const ssize_t length = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  // A message has its sender's credentials with it, for which there is no room here; the end has none.
  const bool empty = length <= 0 && (message.msg_flags & MSG_CTRUNC) == 0;
  if (empty)
    close(socket);
  else
    close_later(uid, socket);
}

size_t count_closing(uid_t uid) {
  Closer& all = closer();
  const std::lock_guard lock(all.mutex);
  const auto entry = all.users.find(uid);
  return entry == all.users.end() ? 0 : entry->second.descriptors.size();
}

namespace {

constexpr size_t kLongestRequest = 256;  // bytes; the longest that the protocol has is shorter
constexpr size_t kMostFiles = 253;       // the kernel's own limit: it would close further ones itself, while we wait
// Of one connection. An answer is made as its parts are read, and no request is read before. So what waits here are
// answers of the driver and ends of leases, one per GPU. 64 KiB hold 240 of them. Half would still be enough for 16
// GPUs; double lets a client that does not read cost more memory.
constexpr size_t kMostUnsentBytes = 64 << 10;
constexpr size_t kBytesOfMessage = 64;  // what keeping one takes beside its own
// In the kernel, of what a connection has not read. It doubles the number for its own structures. The status of a host
// with 16 GPUs is 4 KiB long. At half, a slow reader wakes the daemon more often; at double, it costs more memory.
constexpr int kKernelBytes = 16 << 10;

// What came along with a message.
void read_ancillary(msghdr* message, uid_t uid, Fd* file, ucred* sender) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_CREDENTIALS && part->cmsg_len == CMSG_LEN(sizeof *sender))
      std::memcpy(sender, CMSG_DATA(part), sizeof *sender);
    if (part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(part) + i * sizeof(int), sizeof passed);
      Fd held(passed, uid);
      if (file->get() < 0) *file = std::move(held);
    }
  }
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close_later(uid_, fd_);
}

Fd::Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), uid_(other.uid_) {}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(uid_, other.uid_);
  return *this;
}

bool ByteBudget::take(size_t bytes) {
  if (used_.fetch_add(bytes) + bytes <= most_ && (whole_ == nullptr || whole_->take(bytes))) return true;
  used_.fetch_sub(bytes);
  return false;
}

void ByteBudget::give_back(size_t bytes) {
  used_.fetch_sub(bytes);
  if (whole_ != nullptr) whole_->give_back(bytes);
}

Connection::Connection(int socket, Peer peer, std::shared_ptr<ByteBudget> budget)
    : socket_(socket), peer_(std::move(peer)), budget_(std::move(budget)) {
  setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &kKernelBytes, sizeof kKernelBytes);
}

Connection::~Connection() {
  budget_->give_back(unsent_bytes_);
  close_socket(peer_.uid, socket_);
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
  read_ancillary(&message, peer_.uid, &received.file, &sender);
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

bool Connection::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

bool Connection::send(Bytes message) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = message.size() + kBytesOfMessage;
  if (!failed_ && (unsent_bytes_ + bytes > kMostUnsentBytes || !budget_->take(bytes))) failed_ = true;
  if (failed_) return false;
  unsent_bytes_ += bytes;
  unsent_.push_back(std::move(message));
  return flush_locked();
}

bool Connection::flush() {
  const std::lock_guard lock(mutex_);
  return flush_locked();
}

bool Connection::flush_locked() {
  while (!unsent_.empty() && !failed_) {
    const Bytes& message = unsent_.front();
    const ssize_t sent = ::send(socket_, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return true;
    if (sent < 0) {
      failed_ = true;
      return false;
    }
    const size_t bytes = message.size() + kBytesOfMessage;
    unsent_bytes_ -= bytes;
    budget_->give_back(bytes);
    unsent_.pop_front();
  }
  return !failed_;
}

}  // namespace powerccl::daemon
