// SPDX-License-Identifier: Apache-2.0
#include "emulator/client/connection.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/host_clock.h"

namespace powerccl::emulator {
namespace {

constexpr uint64_t kLivenessNs = 100'000'000;  // how often a sleeper looks whether the server lives

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, uint64_t at_most_ns) {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(at_most_ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(at_most_ns % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void* map_page(int descriptor, size_t bytes, int protection) {
  void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

}  // namespace

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(host_now_ns());
}

namespace {

thread_local uint64_t stamped_as_of = 0;

}  // namespace

void stamp_as_of(uint64_t stamp_ns) {
  stamped_as_of = stamp_ns;
}

std::unique_ptr<Connection> Connection::open(Role role, const char* library, uint32_t client) {
  const char* path = getenv("POWERCCL_EMULATOR_SOCKET");
  if (path == nullptr || *path == '\0') {
    fprintf(stderr,
            "powerccl-emulator: %s: POWERCCL_EMULATOR_SOCKET is not set, so there are no emulated GPUs\n"
            "hint: start the job with `powerccl run --emulate t4x8 -- ...`\n",
            library);
    return nullptr;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = strlen(path);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const int buffer = 4 * 1024 * 1024;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  if (length < sizeof address.sun_path) memcpy(address.sun_path, path, length);
  if (fd < 0 || length >= sizeof address.sun_path ||
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    fprintf(stderr,
            "powerccl-emulator: %s: cannot reach the emulated GPU server at %s: %s\n"
            "hint: it ends with the `powerccl run --emulate` that started it\n",
            library, path, strerror(errno));
    if (fd >= 0) close(fd);
    return nullptr;
  }
  std::unique_ptr<Connection> connection(new Connection(fd, library));
  if (!connection->handshake(role, client)) {
    fprintf(stderr,
            "powerccl-emulator: %s: the server at %s refused: it is not from the same PowerCCL build, or is ending\n",
            library, path);
    return nullptr;
  }
  return connection;
}

Connection::~Connection() {
  if (page_ != nullptr) munmap(page_, sizeof(ClientPage));
  if (board_ != nullptr) munmap(board_, sizeof(BoardPage));
  close(fd_);
}

bool Connection::handshake(Role role, uint32_t client) {
  Hello hello{};
  pid_ = getpid();
  hello.abi = kAbi;
  hello.role = static_cast<uint32_t>(role);
  hello.pid = static_cast<uint32_t>(pid_);
  hello.client = client;
  hello.header.type = static_cast<uint32_t>(Message::kHello);
  hello.header.request = next_request_++;
  if (!send(&hello.header, sizeof hello, nullptr, 0, -1)) return false;
  Welcome welcome{};
  iovec part{&welcome, sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = recvmsg(fd_, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  int descriptors[2] = {-1, -1};
  if (got > 0) {
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
      if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS)
        memcpy(descriptors, CMSG_DATA(item),
               std::min(sizeof descriptors, static_cast<size_t>(item->cmsg_len - CMSG_LEN(0))));
    }
  }
  const bool sound = got == static_cast<ssize_t>(sizeof welcome) && welcome.error == 0 && welcome.abi == kAbi;
  if (sound && descriptors[0] >= 0)
    board_ = static_cast<BoardPage*>(map_page(descriptors[0], sizeof(BoardPage), PROT_READ));
  if (sound && descriptors[1] >= 0)
    page_ = static_cast<ClientPage*>(map_page(descriptors[1], sizeof(ClientPage), PROT_READ | PROT_WRITE));
  for (const int descriptor : descriptors)
    if (descriptor >= 0) close(descriptor);
  client_ = welcome.client;
  return sound && board_ != nullptr && (role != Role::kCuda || page_ != nullptr);
}

void Connection::lose() {
  // A forked child shares the socket but has no GPU; its parent is the one to complain.
  if (lost_.exchange(true) || getpid() != pid_) return;
  fprintf(stderr, "powerccl-emulator: %s: the emulated GPU server is gone; every call fails from here on\n", library_);
}

bool Connection::alive() {
  if (lost_.load()) return false;
  pollfd watched{fd_, POLLRDHUP, 0};
  constexpr unsigned kEnds = POLLRDHUP | POLLHUP | POLLERR;
  if (poll(&watched, 1, 0) > 0 && (static_cast<unsigned>(watched.revents) & kEnds) != 0) lose();
  return !lost_.load();
}

bool Connection::send(Header* header, size_t bytes, const void* payload, size_t payload_bytes, int descriptor) {
  header->bytes = static_cast<uint32_t>(bytes + payload_bytes);
  iovec parts[2] = {{header, bytes}, {const_cast<void*>(payload), payload_bytes}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = payload_bytes != 0 ? 2 : 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  const std::lock_guard lock(send_mutex_);
  // Within the lock: stamps ascend in the order of the messages, except those of a stopped time.
  header->stamp_ns = stamped_as_of != 0 ? stamped_as_of : monotonic_ns();
  ssize_t sent;
  do {
    sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) lose();
  return sent >= 0;
}

bool Connection::post(Header* header, size_t bytes, const void* payload, size_t payload_bytes) {
  if (lost_.load()) return false;
  header->request = 0;
  return send(header, bytes, payload, payload_bytes, -1);
}

bool Connection::request(Header* header, size_t bytes, Reply& reply, const void* payload, size_t payload_bytes,
                         int descriptor) {
  if (lost_.load()) return false;
  std::unique_lock lock(reply_mutex_);
  const uint64_t id = next_request_++;
  lock.unlock();
  header->request = id;
  if (!send(header, bytes, payload, payload_bytes, descriptor)) return false;
  lock.lock();
  std::vector<std::byte> buffer;
  while (true) {
    const auto entry = replies_.find(id);
    if (entry != replies_.end()) {
      reply = std::move(entry->second);
      replies_.erase(entry);
      return true;
    }
    if (lost_.load()) return false;
    if (reading_) {
      reply_ready_.wait(lock);
      continue;
    }
    reading_ = true;
    lock.unlock();
    buffer.resize(kMaxMessageBytes);
    ssize_t got;
    do {
      // The lock was given up above, which the analyzer does not see.
      got = recv(fd_, buffer.data(), buffer.size(), 0);  // NOLINT(clang-analyzer-unix.BlockInCriticalSection)
    } while (got < 0 && errno == EINTR);
    if (got <= 0) lose();
    lock.lock();
    reading_ = false;
    if (got >= static_cast<ssize_t>(sizeof(Status))) {
      Status status;
      memcpy(&status, buffer.data(), sizeof status);
      const size_t body = std::min<size_t>(status.payload_bytes, static_cast<size_t>(got) - sizeof status);
      replies_[status.header.request] = {
          status.error,
          {buffer.begin() + sizeof status, buffer.begin() + sizeof status + static_cast<std::ptrdiff_t>(body)}};
    }
    reply_ready_.notify_all();
  }
}

bool Connection::receive(void* message, size_t bytes) {
  ssize_t got;
  do {
    got = recv(fd_, message, bytes, 0);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(bytes);
}

void Connection::shut_down() {
  shutdown(fd_, SHUT_RDWR);
}

bool Connection::wait_stream(uint32_t stream, uint64_t sequence) {
  StreamSlot& slot = page_->streams[stream];
  while (slot.completed.load() < sequence) {
    const uint32_t seen = slot.wake.load();
    uint64_t wake_at = slot.wake_at.load();
    while (sequence < wake_at && !slot.wake_at.compare_exchange_weak(wake_at, sequence)) continue;
    if (slot.completed.load() >= sequence) break;
    futex_wait(slot.wake, seen, kLivenessNs);
    if (slot.completed.load() < sequence && !alive()) return false;
  }
  return true;
}

bool Connection::wait_op(uint32_t index, uint64_t generation, uint32_t state, uint64_t deadline_ns) {
  OpSlot& slot = page_->ops[index];
  slot.waiters.fetch_add(1);
  bool lives = true;
  while (lives) {
    const uint32_t seen = slot.state.load();
    if (slot.generation.load() == generation && seen >= state) break;
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) break;
    futex_wait(slot.state, seen, std::min(deadline_ns - now, kLivenessNs));
    if (monotonic_ns() - now >= kLivenessNs) lives = alive();
  }
  slot.waiters.fetch_sub(1);
  return lives;
}

}  // namespace powerccl::emulator
