// SPDX-License-Identifier: Apache-2.0
#include "daemon/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/clock.h"
#include "daemon/log.h"

namespace powerccl::daemon {

namespace {

// systemd's notification protocol (sd_notify(3)): a datagram to the socket in NOTIFY_SOCKET.
// "READY=1", "STOPPING=1", "WATCHDOG=1". Does nothing without systemd.
void notify(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@') || std::strlen(path) >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  sendto(socket, state, std::strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address), length);
  close(socket);
}

// How often systemd wants to hear WATCHDOG=1, halved so as to be in time; 0: never.
int64_t watchdog_interval_ns() {
  const char* microseconds = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (microseconds == nullptr || (pid != nullptr && std::strtol(pid, nullptr, 10) != getpid())) return 0;
  const long long interval = std::strtoll(microseconds, nullptr, 10);
  return interval > 0 ? interval * 1000 / 2 : 0;
}

constexpr int64_t kMs = 1'000'000;
// For clocks to be restored at the end. By default systemd kills a unit after 90 s; a driver call takes milliseconds.
constexpr int64_t kStopPatienceNs = 10'000 * kMs;
// Answers that wait for all sessions to read them. With the rest of the daemon it stays below 64 MiB, an eighth of what
// the unit lets it have. Half would be 16 users who each use up theirs.
constexpr size_t kMostUnsentBytes = 32u << 20;
// Connections that the kernel keeps until they are taken. A flood is refused at some 8,000 a second, so the one that
// comes last of them waits for half a second. With half of it more find it full, and a job that does asks again later.
constexpr int kBacklog = 4096;

}  // namespace

Server::Server(const ServerSettings& settings, StateFile* state, SocketPlace* place, GpuDriver* driver)
    : settings_(settings), state_(state), place_(place), driver_(driver), table_(this), unsent_(kMostUnsentBytes) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  signals_ = signalfd(-1, &settings.ending, SFD_CLOEXEC | SFD_NONBLOCK);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  // The only event that all threads see, as often as they look: everything is over.
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag_of(Source::kBell);
  epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_, &event);
  watch(timer_, tag_of(Source::kTimer), EPOLLIN);
  watch(signals_, tag_of(Source::kSignal), EPOLLIN);
  const Config& config = settings_.config;
  table_.take_devices(driver_->about(), config.gpu_interval_ms * kMs, config.gpu_settle_ms * kMs, config.sharing);
  round_.reading.assign(table_.size(), false);
}

Server::~Server() {
  {
    const Lock lock(mutex_);
    over_ = true;
    const uint64_t one = 1;
    if (write(bell_, &one, sizeof one) < 0) std::abort();  // an eventfd takes a first one
  }
  for (std::thread& thread : workers_) thread.join();
  sessions_.clear();
  for (const int listener : listeners_) close(listener);
  for (const int fd : {epoll_, bell_, timer_, signals_, spare_})
    if (fd >= 0) close(fd);
}

void Server::watch(int fd, uint64_t tag, uint32_t events) const {
  epoll_event event{};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) != 0 && errno == ENOENT)
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

// ---- Actions

void Server::enqueue(Job job) {
  if (job.kind == Job::kRead && job.session != 0) {
    if (Session* session = find(job.session); session != nullptr) ++session->reads;
    return queue_.reads.push_back(job);
  }
  (job.kind == Job::kRestore ? queue_.urgent : queue_.jobs).push_back(job);
}

int Server::mark(const std::string& device, const Holder& holder) {
  return settings_.dry ? 0 : state_->mark(device, holder.uid, holder.pid);
}

int Server::clear(const std::string& device) {
  return settings_.dry ? 0 : state_->clear(device);
}

Bytes Server::encode_answer(uint64_t serial, const Answer& answer) const {
  Answer full = answer;
  if (settings_.dry) full.flags |= POWERCCL_LEASE_DRY;
  return encode_reply(POWERCCL_LEASE_REPLY, serial, full);
}

void Server::reply(SessionId session, uint64_t serial, const Answer& answer) {
  send(session, encode_answer(serial, answer));
}

void Server::tell(SessionId session, uint16_t type, const Answer& answer) {
  send(session, encode_reply(type, 0, answer));
}

uint64_t Server::new_lease_number() {
  uint64_t number = 0;
  while (number == 0)
    if (getrandom(&number, sizeof number, 0) != sizeof number) number = 0;
  return number;
}

// ---- Life

bool Server::restore_left(int64_t patience_ns) {
  Lock lock(mutex_);
  for (const std::string& mark : state_->left()) {
    const auto device = table_.find(mark);
    if (!device) {
      log(kError,
          "cannot restore the clock of %s, which a killed daemon left set: the device is missing; its mark is kept",
          mark.c_str());
      continue;
    }
    log(kWarning, "restoring the clock of %s, which a killed daemon left set", mark.c_str());
    table_.restore(*device, true, now_ns());
  }
  if (state_->doubtful()) {
    log(kWarning, "the state file is damaged: restoring the clocks of all devices");
    table_.restore_all(now_ns());
  }
  const int64_t deadline = now_ns() + patience_ns;
  set_timer();
  start_workers();  // not before there is what to begin with
  wait_until(&lock, deadline, [this] { return table_.all_restored() || stopping_; });
  return table_.all_restored();
}

int Server::serve() {
  if (!listen()) return 1;
  watchdog_ns_ = watchdog_interval_ns();
  if (settings_.by_pipe) {
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    watch(STDIN_FILENO, tag_of(Source::kInput), EPOLLIN);
    std::puts("ready");
    std::fflush(stdout);
  }
  notify("READY=1");
  log(kInfo, "%zu device%s to lease at %s%s", table_.size(), table_.size() == 1 ? "" : "s",
      settings_.config.socket_path.c_str(), settings_.dry ? "; dry: no clock is set" : "");
  Lock lock(mutex_);
  keep_time(now_ns());  // begins what is due at times: an idle daemon is woken by nothing else
  set_timer();
  serving_ = true;
  wait_until(&lock, INT64_MAX, [this] { return stopping_; });
  wait_until(&lock, stop_by_ns_, [this] { return table_.at_rest(); });
  write_left_out(INT64_MAX);
  if (table_.at_rest()) return 0;
  give_up();
}

void Server::give_up() const {
  log(kError, "some clocks are still set: the next powerccld, or powerccld --restore, restores them");
  _exit(1);  // a call that hangs in the driver cannot be waited for
}

bool Server::listen() {
  const Config& config = settings_.config;
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (!listen_at("", config.socket_bits, config.socket_gid)) return false;
  return settings_.by_pipe || listen_at(kRootSuffix, 0600, static_cast<gid_t>(-1));
}

bool Server::listen_at(const char* suffix, mode_t mode, gid_t group) {
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) {
    log(kError, "cannot create a socket: %s", std::strerror(errno));
    return false;
  }
  listeners_.push_back(listener);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);  // accepted sockets have it from the first message on
  std::string reason;
  if (!place_->bind(listener, suffix, mode, group, &reason)) {
    log(kError, "%s", reason.c_str());
    return false;
  }
  // The kernel takes less where net.core.somaxconn says so.
  if (::listen(listener, kBacklog) != 0) {
    log(kError, "%s%s: cannot listen: %s", settings_.config.socket_path.c_str(), suffix, std::strerror(errno));
    return false;
  }
  watch(listener, tag_of(Source::kListener, listeners_.size() - 1), EPOLLIN);
  return true;
}

void Server::begin_stop() {
  if (stopping_) return;
  stopping_ = true;
  stop_by_ns_ = now_ns() + kStopPatienceNs;
  notify("STOPPING=1");
  log(kInfo, "stopping: all leases end");
  place_->remove_sockets();
  for (const int listener : std::exchange(listeners_, {})) close(listener);
  for (size_t device = 0; device < table_.size(); ++device) table_.end(device, Ending::kStopping, now_ns());
}

// ---- The loop

int64_t Server::next_ns() const {
  int64_t next = table_.next_ns();
  for (const int64_t due : {heartbeats_due_ns_, watchdog_due_ns_, listen_again_ns_})
    if (due != 0) next = std::min(next, due);
  if (round_.under_way)
    next = std::min(next, round_.deadline_ns);
  else if (!round_.next_askers.empty())
    next = std::min(next, round_.begun_ns + kRoundIntervalNs);
  return std::min(next, left_out_due_ns());
}

void Server::handle(uint64_t tag, uint32_t events) {
  switch (source_of(tag)) {
    case Source::kListener: {
      if (stopping_) return;
      const int listener = listeners_[number_of(tag)];
      if (accept_some(listener)) watch(listener, tag, EPOLLIN);
      return;
    }
    case Source::kSignal:
      take_signals();
      return watch(signals_, tag, EPOLLIN);
    case Source::kTimer: {
      uint64_t rung;
      if (read(timer_, &rung, sizeof rung) > 0) timer_ns_ = INT64_MAX;
      return watch(timer_, tag, EPOLLIN);
    }
    case Source::kInput:
      return take_input();
    case Source::kSession:
      return attend(number_of(tag), events);
    case Source::kPeer:
      return close_session(number_of(tag), Ending::kGone);
    case Source::kBell:
      return;
  }
}

void Server::keep_time(int64_t now) {
  table_.advance(now);
  if (round_.under_way && now >= round_.deadline_ns)
    end_round();  // without the clocks that the driver has not
                  // reported
  begin_round(now);
  if (listen_again_ns_ != 0 && now >= listen_again_ns_) {
    listen_again_ns_ = 0;
    for (size_t i = 0; i < listeners_.size(); ++i) watch(listeners_[i], tag_of(Source::kListener, i), EPOLLIN);
  }
  if (now >= left_out_due_ns()) write_left_out(now);
  if (heartbeats_due_ns_ != 0 && now >= heartbeats_due_ns_) {
    heartbeats_due_ns_ = 0;
    const int64_t patience = settings_.config.access_heartbeat_ms * kMs;
    for (auto& [id, session] : sessions_) {
      if (session.paused && spend_credit(&session, now)) {
        session.credit += 1;
        session.paused = false;
        watch_session(id, session);
      }
      if (session.greeted && session.leases && now - session.heard_ns >= patience) {
        session.leases = false;
        table_.end_session(id, Ending::kMissed, now);
      } else if (!session.greeted && now - session.heard_ns >= patience) {
        closing_.emplace_back(id, Ending::kGone);
      }
      int64_t due = INT64_MAX;
      if (session.leases || !session.greeted) due = session.heard_ns + patience;
      if (session.paused) due = std::min(due, now + 10 * kMs);
      if (due != INT64_MAX) heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
    }
  }
  if (watchdog_ns_ > 0 && now >= watchdog_due_ns_) {
    notify("WATCHDOG=1");
    watchdog_due_ns_ = now + watchdog_ns_;
  }
}

void Server::take_signals() {
  signalfd_siginfo signal;
  while (read(signals_, &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal)) begin_stop();
}

void Server::take_input() {
  char discarded[256];
  const ssize_t length = read(STDIN_FILENO, discarded, sizeof discarded);
  if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR)))
    return watch(STDIN_FILENO, tag_of(Source::kInput), EPOLLIN);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, STDIN_FILENO, nullptr);
  input_ended_ = true;
}

}  // namespace powerccl::daemon
