// SPDX-License-Identifier: Apache-2.0
#include "emulator/server/server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "physics/board.h"

namespace powerccl::emulator {
namespace {

constexpr Time kSpinNs = 100'000;             // timers here fire up to 70 us late
constexpr Time kToleratedLateNs = 1'000'000;  // drivers of real GPUs are late by as much at times

Time monotonic() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Time>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  return {data, data + sizeof(T)};
}

template <typename T>
const T* read_as(const std::vector<std::byte>& message) {
  return message.size() >= sizeof(T) ? reinterpret_cast<const T*>(message.data()) : nullptr;
}

}  // namespace

Server::Server(const Platform& platform, std::string socket_path, std::string& error)
    : platform_(platform), path_(std::move(socket_path)) {
  used_bytes_.assign(platform.gpus, 0);
  started_ = monotonic();
  engine_ = std::make_unique<Engine>(platform_, started_, *this);
  if (!make_board(error) || !listen_on(path_, error)) return;
  engine_->publish(*board_);
}

Server::~Server() {
  {
    const std::lock_guard lock(jobs_mutex_);
    worker_stops_ = true;
  }
  jobs_ready_.notify_all();
  if (worker_.joinable()) worker_.join();
  for (auto& [fd, connection] : connections_) {
    for (auto& [message, descriptors] : connection->unsent)
      for (const int descriptor : descriptors) close(descriptor);
    close(fd);
  }
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
  fill_board(platform_, monotonic(), *board_);
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
  sigset_t mask_signals;
  sigemptyset(&mask_signals);
  sigaddset(&mask_signals, SIGTERM);
  sigaddset(&mask_signals, SIGINT);
  sigaddset(&mask_signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &mask_signals, nullptr);
  signals_ = signalfd(-1, &mask_signals, SFD_NONBLOCK | SFD_CLOEXEC);
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
    const Time now = monotonic();
    // Less what was counted before, and less what a client had stopped time for.
    const Time late_since = std::max(engine_->next_event(), counted_until_);
    if (engine_->next_is_precise() && now - late_since > kToleratedLateNs) events_late_ += now - late_since;
    counted_until_ = now;
    engine_->advance(now);
  }
  return 0;
}

Lateness Server::lateness() const {
  return {monotonic() - started_, events_late_, engine_->data_late()};
}

bool Server::wait() {
  const Time now = monotonic();
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
      when.it_value.tv_sec = wake_at / 1'000'000'000;
      when.it_value.tv_nsec = wake_at % 1'000'000'000;
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
      if (fd == wake_) finish_jobs();
    } else if (fd == STDIN_FILENO) {
      char buffer[256];
      if (read(STDIN_FILENO, buffer, sizeof buffer) <= 0) return false;
    } else {
      if ((events[i].events & EPOLLOUT) != 0) {
        const auto found = connections_.find(fd);
        if (found != connections_.end()) flush(*found->second);
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
    auto connection = std::make_unique<Connection>();
    connection->fd = fd;
    connections_[fd] = std::move(connection);
  }
}

void Server::receive(int fd) {
  std::vector<std::byte> buffer(kMaxMessageBytes);
  while (true) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      close_connection(fd);
      return;
    }
    int attached = -1;
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor;
        memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof descriptor);
        if (attached < 0)
          attached = descriptor;
        else
          close(descriptor);
      }
    }
    std::vector<std::byte> message(buffer.begin(), buffer.begin() + got);
    const Header* head = read_as<Header>(message);
    if (head == nullptr || head->bytes != static_cast<uint32_t>(got)) {
      if (attached >= 0) close(attached);
      close_connection(fd);  // not one of ours
      return;
    }
    handle(*found->second, message, attached);
  }
}

void Server::handle(Connection& connection, std::vector<std::byte>& message, int attached) {
  const Header& head = *read_as<Header>(message);
  const auto type = static_cast<Message>(head.type);
  if (type == Message::kAllocate && read_as<Allocate>(message) != nullptr && connection.client != 0) {
    allocate(connection, *read_as<Allocate>(message), attached);
    return;
  }
  if (attached >= 0) close(attached);
  if (type == Message::kHello && read_as<Hello>(message) != nullptr && connection.client == 0) {
    hello(connection, *read_as<Hello>(message));
  } else if (connection.client == 0) {
    close_connection(connection.fd);
  } else if (type == Message::kFree && read_as<Free>(message) != nullptr) {
    free_allocation(connection, *read_as<Free>(message));
  } else if (type == Message::kSetLockedClocks && read_as<SetLockedClocks>(message) != nullptr) {
    lock_clocks(connection, *read_as<SetLockedClocks>(message));
  } else if (type == Message::kStopTime && read_as<StopTime>(message) != nullptr) {
    stop_time(connection, *read_as<StopTime>(message));
  } else if (type == Message::kStartTime && read_as<StartTime>(message) != nullptr) {
    start_time(connection, *read_as<StartTime>(message));
  } else if (type == Message::kStop) {
    status(connection, head.request, 0);
    stop_ = true;
  } else {
    engine_->submit(connection.client, message);
  }
}

void Server::hello(Connection& connection, const Hello& message) {
  Welcome welcome{};
  welcome.header = {static_cast<uint32_t>(Message::kReply), sizeof welcome, static_cast<uint64_t>(monotonic()),
                    message.header.request};
  welcome.abi = kAbi;
  welcome.gpus = platform_.gpus;
  connection.role = static_cast<Role>(message.role);
  if (message.abi != kAbi) {
    welcome.error = EPROTO;
    send(connection, bytes_of(welcome));
    return;
  }
  if (connection.role == Role::kCallback) {
    const auto found = clients_.find(message.client);
    if (found == clients_.end()) {
      welcome.error = ESRCH;
      send(connection, bytes_of(welcome));
      return;
    }
    connection.client = welcome.client = message.client;
    found->second.callbacks = connection.fd;
    send(connection, bytes_of(welcome), {dup(board_fd_)});
    for (auto& waiting : found->second.waiting_callbacks) send(connection, std::move(waiting));
    found->second.waiting_callbacks.clear();
    return;
  }
  connection.client = welcome.client = next_client_++;
  if (connection.role == Role::kNvml) {
    send(connection, bytes_of(welcome), {dup(board_fd_)});
    return;
  }
  Client client;
  client.main = connection.fd;
  client.page_fd = memfd_create("powerccl-emulator-client", MFD_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (client.page_fd >= 0 && ftruncate(client.page_fd, sizeof(ClientPage)) == 0)
    mapped = mmap(nullptr, sizeof(ClientPage), PROT_READ | PROT_WRITE, MAP_SHARED, client.page_fd, 0);
  if (mapped == MAP_FAILED) {
    welcome.error = errno;
    if (client.page_fd >= 0) close(client.page_fd);
    send(connection, bytes_of(welcome));
    return;
  }
  client.page = static_cast<ClientPage*>(mapped);
  const int page_fd = client.page_fd;
  engine_->add_client(connection.client, client.page);
  clients_.emplace(connection.client, std::move(client));
  send(connection, bytes_of(welcome), {dup(board_fd_), dup(page_fd)});
}

void Server::allocate(Connection& connection, const Allocate& message, int attached) {
  constexpr int32_t kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  constexpr int32_t kInvalidValue = 1;
  const auto found = clients_.find(connection.client);
  struct stat info{};
  const bool sound = found != clients_.end() && attached >= 0 && message.gpu < platform_.gpus &&
                     fstat(attached, &info) == 0 && static_cast<uint64_t>(info.st_size) >= message.bytes &&
                     message.bytes > 0;
  if (!sound || (message.on_host == 0 && used_bytes_[message.gpu] + message.bytes > platform_.memory_bytes)) {
    if (attached >= 0) close(attached);
    status(connection, message.header.request, sound ? kOutOfMemory : kInvalidValue);
    return;
  }
  if (message.on_host == 0) used_bytes_[message.gpu] += message.bytes;
  found->second.allocations[message.allocation] = {attached, message.bytes, message.gpu, message.on_host != 0, {}};
  status(connection, message.header.request, 0);
}

void Server::free_allocation(Connection& connection, const Free& message) {
  const auto client = clients_.find(connection.client);
  if (client != clients_.end()) {
    const auto found = client->second.allocations.find(message.allocation);
    if (found != client->second.allocations.end()) {
      if (!found->second.on_host) used_bytes_[found->second.gpu] -= found->second.bytes;
      close(found->second.fd);
      client->second.allocations.erase(found);
    }
  }
  if (message.header.request != 0) status(connection, message.header.request, 0);
}

void Server::lock_clocks(Connection& connection, const SetLockedClocks& message) {
  const uint64_t request = message.header.request;
  const int fd = connection.fd;
  const ClientId client = connection.client;
  if (message.gpu >= platform_.gpus) {
    status(connection, request, ENODEV);
    return;
  }
  const int32_t inject = message.inject;
  engine_->set_locked_clocks(message.gpu, message.min_mhz, message.max_mhz, inject == 0,
                             static_cast<Time>(message.header.stamp_ns), [this, fd, client, request, inject](Time) {
                               const auto found = connections_.find(fd);
                               if (found != connections_.end() && found->second->client == client)
                                 status(*found->second, request, inject);
                             });
}

// At once, not in its place in model time: that would come only when time goes on.
void Server::stop_time(Connection& connection, const StopTime& message) {
  const auto patience = static_cast<Time>(std::min(message.patience_ns, kLongestPatienceNs));
  const bool stopped = engine_->stop_time(connection.client, message.stop, patience);
  status(connection, message.header.request, stopped ? 0 : EINVAL);
}

void Server::start_time(Connection& connection, const StartTime& message) {
  const bool stood = engine_->start_time(connection.client, message.stop);
  counted_until_ = monotonic();
  status(connection, message.header.request, stood ? 0 : ETIME);
}

void Server::status(Connection& connection, uint64_t request, int32_t error) {
  Status reply{};
  reply.header = {static_cast<uint32_t>(Message::kReply), sizeof reply, static_cast<uint64_t>(monotonic()), request};
  reply.error = error;
  send(connection, bytes_of(reply));
}

void Server::reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) {
  const auto found = clients_.find(client);
  if (found == clients_.end() || request == 0) return;
  const auto connection = connections_.find(found->second.main);
  if (connection == connections_.end()) return;
  body = body.first(std::min(body.size(), kMaxPayloadBytes));
  Status head{};
  head.header = {static_cast<uint32_t>(Message::kReply), static_cast<uint32_t>(sizeof head + body.size()),
                 static_cast<uint64_t>(monotonic()), request};
  head.error = error;
  head.payload_bytes = static_cast<uint32_t>(body.size());
  std::vector<std::byte> message = bytes_of(head);
  message.insert(message.end(), body.begin(), body.end());
  send(*connection->second, std::move(message));
}

void Server::run_callback(ClientId client, uint64_t callback, uint32_t stream, uint64_t sequence) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  RunCallback order{};
  order.header = {static_cast<uint32_t>(Message::kRunCallback), sizeof order, static_cast<uint64_t>(monotonic()), 0};
  order.callback = callback;
  order.stream = stream;
  order.sequence = sequence;
  const auto connection = connections_.find(found->second.callbacks);
  if (connection == connections_.end())
    found->second.waiting_callbacks.push_back(bytes_of(order));
  else
    send(*connection->second, bytes_of(order));
}

std::shared_ptr<Memory> Server::memory(ClientId client, uint64_t allocation) {
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return nullptr;
  const auto found = owner->second.allocations.find(allocation);
  if (found == owner->second.allocations.end()) return nullptr;
  Allocation& entry = found->second;
  if (auto mapped = entry.mapped.lock()) return mapped;
  void* data = mmap(nullptr, entry.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, entry.fd, 0);
  if (data == MAP_FAILED) return nullptr;
  auto mapped = std::make_shared<Memory>();
  mapped->data = static_cast<std::byte*>(data);
  mapped->bytes = entry.bytes;
  mapped->gpu = entry.gpu;
  entry.mapped = mapped;
  return mapped;
}

void Server::send(Connection& connection, std::vector<std::byte> message, std::vector<int> descriptors) {
  connection.unsent.emplace_back(std::move(message), std::move(descriptors));
  flush(connection);
}

void Server::flush(Connection& connection) {
  while (!connection.unsent.empty()) {
    auto& [message, descriptors] = connection.unsent.front();
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
    if (sendmsg(connection.fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // Any other failure is the peer's end, and is seen when its end of file is read.
    for (const int descriptor : descriptors) close(descriptor);
    connection.unsent.pop_front();
  }
  epoll_event event{.events = EPOLLIN | (connection.unsent.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT)),
                    .data = {.fd = connection.fd}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
}

void Server::close_connection(int fd) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  const ClientId client = found->second->client;
  for (auto& [message, descriptors] : found->second->unsent)
    for (const int descriptor : descriptors) close(descriptor);
  connections_.erase(found);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  close(fd);
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return;
  if (owner->second.callbacks == fd) owner->second.callbacks = -1;
  if (owner->second.main != fd) return;
  owner->second.main = -1;
  engine_->start_all(client);
  // In its place in model time: what it submitted before it ended comes first.
  engine_->from_outside([this, client](Time) { forget_client(client); }, monotonic());
}

void Server::forget_client(ClientId client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  engine_->remove_client(client);
  for (auto& [id, allocation] : found->second.allocations) {
    if (!allocation.on_host) used_bytes_[allocation.gpu] -= allocation.bytes;
    close(allocation.fd);
  }
  munmap(found->second.page, sizeof(ClientPage));
  close(found->second.page_fd);
  clients_.erase(found);
}

void Server::run_in_worker(std::function<void()> job, std::function<void(Time)> done) {
  {
    const std::lock_guard lock(jobs_mutex_);
    jobs_.emplace_back(std::move(job), std::move(done));
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  }
  jobs_ready_.notify_one();
}

void Server::work() {
  std::unique_lock lock(jobs_mutex_);
  while (true) {
    jobs_ready_.wait(lock, [this] { return worker_stops_ || !jobs_.empty(); });
    if (worker_stops_) return;
    auto [job, done] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    done_jobs_.emplace_back(std::move(done), monotonic());
    const uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) continue;  // the counter is full: the loop is awake anyway
  }
}

void Server::finish_jobs() {
  std::vector<std::pair<std::function<void(Time)>, Time>> finished;
  {
    const std::lock_guard lock(jobs_mutex_);
    finished.swap(done_jobs_);
  }
  for (auto& [done, stamp] : finished) engine_->from_outside(std::move(done), stamp);
}

}  // namespace powerccl::emulator
