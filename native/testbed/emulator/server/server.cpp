// SPDX-License-Identifier: Apache-2.0
#include "emulator/server/server.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "abi/helper.h"
#include "abi/host_clock.h"
#include "physics/readings.h"

namespace powerccl::emulator {

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Worker::add(std::function<void()> job, Done done, int wake) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(job), std::move(done));
    if (!thread_.joinable()) thread_ = std::thread([this, wake] { work(wake); });
  }
  ready_.notify_one();
}

std::vector<std::pair<Worker::Done, Time>> Worker::take_ended() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ended_, {});
}

void Worker::work(int wake) {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    auto [job, done] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    ended_.emplace_back(std::move(done), host_now_ns());
    const uint64_t one = 1;
    if (write(wake, &one, sizeof one) < 0) continue;  // the counter is full: the loop is awake anyway
  }
}

namespace {

// The first descriptor that a message brought; any others are closed.
int take_descriptor(msghdr& header) {
  int first = -1;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof descriptor);
      if (first < 0)
        first = descriptor;
      else
        close(descriptor);
    }
  }
  return first;
}

}  // namespace

Peer::~Peer() {
  for (auto& [message, descriptors] : unsent_)
    for (const int descriptor : descriptors) close(descriptor);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_, nullptr);
  close(fd_);
}

Peer::Got Peer::receive(std::span<std::byte> buffer, std::vector<std::byte>* message, int* attached) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(fd_, &header, MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothing;
  if (got <= 0) return Got::kEnd;
  *attached = take_descriptor(header);
  message->assign(buffer.begin(), buffer.begin() + got);
  const Header* head = read_as<Header>(*message);
  if (head != nullptr && head->bytes == message->size()) return Got::kMessage;
  if (*attached >= 0) close(*attached);
  return Got::kEnd;
}

void Peer::send(std::vector<std::byte> message, std::vector<int> descriptors) {
  unsent_.emplace_back(std::move(message), std::move(descriptors));
  flush();
}

void Peer::flush() {
  while (!unsent_.empty()) {
    auto& [message, descriptors] = unsent_.front();
    iovec part{message.data(), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
      const size_t bytes = sizeof(int) * descriptors.size();
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* item = CMSG_FIRSTHDR(&header);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(bytes);
      memcpy(CMSG_DATA(item), descriptors.data(), bytes);
    }
    if (sendmsg(fd_, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // Any other failure is the peer's end, and is seen when its end of file is read.
    for (const int descriptor : descriptors) close(descriptor);
    unsent_.pop_front();
  }
  epoll_event event{.events = EPOLLIN | (unsent_.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT)), .data = {.fd = fd_}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event);
}

namespace {

constexpr Time kSpinNs = 100'000;             // timers here fire up to 70 us late
constexpr Time kToleratedLateNs = 1'000'000;  // drivers of real GPUs are late by as much at times

// What tells this host from others: containers of one host share its boot, and hosts made from one image its name.
std::string host_identity() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  return std::string(name.data()) + " " + boot_id;
}

}  // namespace

Server::Server(const Platform& platform, std::string socket_path, std::string& error)
    : platform_(platform), path_(std::move(socket_path)) {
  used_bytes_.assign(platform.gpus, 0);
  started_ = host_now_ns();
  engine_ = std::make_unique<Engine>(platform_, started_, *this);
  if (!make_board(error) || !listen_on(path_, error)) return;
  engine_->publish(*board_);
}

Server::~Server() {
  worker_.reset();  // before the memory that it works on
  peers_.clear();
  while (!clients_.empty()) forget_client(clients_.begin()->first);
  if (listener_ >= 0) unlink(path_.c_str());
  for (const int fd : {listener_, epoll_, timer_, signals_, wake_, board_fd_})
    if (fd >= 0) close(fd);
  engine_.reset();
  if (board_ != nullptr) munmap(board_, sizeof(BoardPage));
}

bool Server::make_board(std::string& error) {
  board_fd_ = memfd_create("powerccl-emulator-board", MFD_CLOEXEC);
  if (board_fd_ < 0 || ftruncate(board_fd_, sizeof(BoardPage)) != 0) {
    error = std::string("shared memory: ") + strerror(errno);
    return false;
  }
  void* mapped = mmap(nullptr, sizeof(BoardPage), PROT_READ | PROT_WRITE, MAP_SHARED, board_fd_, 0);
  if (mapped == MAP_FAILED) {
    error = std::string("shared memory: ") + strerror(errno);
    return false;
  }
  board_ = static_cast<BoardPage*>(mapped);
  fill_board(platform_, host_identity(), host_now_ns(), *board_);
  return true;
}

bool Server::listen_on(const std::string& path, std::string& error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    error = path + ": a socket's path has 1 to 107 characters\nhint: choose a shorter folder, e.g. below /tmp";
    return false;
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const mode_t mask = umask(0077);
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  umask(mask);
  if (!bound || listen(fd, 128) != 0) {
    error = path + ": " + strerror(errno) +
            "\nhint: another server may be listening there; choose another --socket or remove the file";
    if (bound) unlink(path.c_str());
    if (fd >= 0) close(fd);
    return false;
  }
  listener_ = fd;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGHUP);
  powerccl_take_signals(&ending);
  signals_ = signalfd(-1, &ending, SFD_NONBLOCK | SFD_CLOEXEC);
  for (const int watched : {listener_, timer_, wake_, signals_}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = watched}};
    if (watched < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, watched, &event) != 0) {
      error = std::string("epoll: ") + strerror(errno);
      return false;
    }
  }
  // Its end is the launcher's end. A file or /dev/null cannot be watched, and then is not.
  epoll_event event{.events = EPOLLIN, .data = {.fd = STDIN_FILENO}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, STDIN_FILENO, &event);
  return true;
}

int Server::run() {
  while (!stop_) {
    if (!wait()) break;
    const Time now = host_now_ns();
    // Less what was counted before, and less what a client had stopped time for.
    const Time late_since = std::max(engine_->next_event(), counted_until_);
    if (engine_->next_is_precise() && now - late_since > kToleratedLateNs) events_late_ += now - late_since;
    counted_until_ = now;
    engine_->advance(now);
  }
  return 0;
}

Lateness Server::lateness() const {
  return {host_now_ns() - started_, events_late_, engine_->data_late()};
}

bool Server::wait() {
  const Time now = host_now_ns();
  const Time next = engine_->next_event();
  int timeout_ms = -1;
  if (next <= now) {
    timeout_ms = 0;
  } else if (next != INT64_MAX) {
    const Time wake_at = engine_->next_is_precise() ? next - kSpinNs : next;
    if (wake_at <= now) {
      timeout_ms = 0;
    } else {
      itimerspec when{};
      const Time own_ns = wake_at + time_shift_ns();
      when.it_value.tv_sec = own_ns / 1'000'000'000;
      when.it_value.tv_nsec = own_ns % 1'000'000'000;
      timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
    }
  }
  epoll_event events[64];
  const int count = epoll_wait(epoll_, events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == listener_) {
      accept_all();
    } else if (fd == signals_) {
      return false;
    } else if (fd == timer_ || fd == wake_) {
      uint64_t ticks;
      if (read(fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) return false;
      if (fd == wake_)
        for (auto& [done, stamp] : worker_->take_ended()) engine_->from_outside(std::move(done), stamp);
    } else if (fd == STDIN_FILENO) {
      char buffer[256];
      if (read(STDIN_FILENO, buffer, sizeof buffer) <= 0) return false;
    } else {
      if ((events[i].events & EPOLLOUT) != 0) {
        if (const auto entry = peers_.find(fd); entry != peers_.end()) entry->second->flush();
      }
      if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(fd);
    }
  }
  return true;
}

void Server::accept_all() {
  while (true) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    const int buffer = 4 * 1024 * 1024;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      close(fd);
      continue;
    }
    peers_[fd] = std::make_unique<Peer>(fd, epoll_);
  }
}

void Server::receive(int fd) {
  std::vector<std::byte> message;
  while (true) {
    const auto entry = peers_.find(fd);
    if (entry == peers_.end()) return;
    int attached = -1;
    switch (entry->second->receive(buffer_, &message, &attached)) {
      case Peer::Got::kMessage:
        handle(*entry->second, message, attached);
        break;
      case Peer::Got::kNothing:
        return;
      case Peer::Got::kEnd:
        end_peer(fd);
        return;
    }
  }
}

void Server::end_peer(int fd) {
  const auto entry = peers_.find(fd);
  if (entry == peers_.end()) return;
  const ClientId client = entry->second->client;
  peers_.erase(entry);
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return;
  if (owner->second.callbacks == fd) owner->second.callbacks = -1;
  if (owner->second.main != fd) return;
  owner->second.main = -1;
  engine_->start_all(client);
  // In its place in model time: what it submitted before it ended comes first.
  engine_->from_outside([this, client](Time) { forget_client(client); }, host_now_ns());
}

}  // namespace powerccl::emulator
