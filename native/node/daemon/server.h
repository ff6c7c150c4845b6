// SPDX-License-Identifier: Apache-2.0
// powerccld: sockets, processes that end, device calls, signals and time, over one epoll.
//
// Device calls take milliseconds, and the driver serialises them. So one is made at a time, and nothing else may wait
// for it. There are two threads, both alike (worker_pool.cpp). They wait in the same epoll, whose events go to one of
// them each. The thread that a request wakes makes the device call and answers. A change of threads costs more than all
// the rest of a request. Everything but the wait, the call and its answer happens under one mutex.
#pragma once
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/config.h"
#include "daemon/connection.h"
#include "daemon/gpu_driver.h"
#include "daemon/lease_table.h"
#include "daemon/socket_place.h"
#include "daemon/state_file.h"

namespace powerccl::daemon {

// What an event of epoll is about.
enum class Source : uint64_t { kListener, kSignal, kBell, kTimer, kInput, kSession, kPeer };

// Sessions are numbered, never reused, so that an event for one that has just ended finds no session.
inline uint64_t tag_of(Source source, uint64_t number = 0) {
  return number << 3 | static_cast<uint64_t>(source);
}
inline Source source_of(uint64_t tag) {
  return static_cast<Source>(tag & 7);
}
inline uint64_t number_of(uint64_t tag) {
  return tag >> 3;
}

// A session number that no client has: the reader of a clock is a status query.
inline constexpr uint64_t kQuerySession = UINT64_MAX;

struct ServerSettings {
  Config config;
  bool dry = false, emulated = false;
  bool by_pipe = false;  // lives by its standard input, says `ready` on standard output
  sigset_t ending{};     // signals that end it; all threads block them
};

// Reading all clocks for a status keeps the driver from setting them for about a millisecond. So many such readings a
// second are a twentieth of its time. With twice the interval, `powerccl clocks` in a loop would be seen to wait.
inline constexpr int64_t kRoundIntervalNs = 20'000'000;

class Server : public Actions {
 public:
  // All of them outlive the server. `place` has been taken.
  Server(const ServerSettings& settings, StateFile* state, SocketPlace* place, GpuDriver* driver);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Restores the clocks that an earlier daemon left, for at most `patience_ns`. False: some could not be restored yet.
  bool restore_left(int64_t patience_ns);
  // Serves until a signal stops it. Returns the exit code: 0, or 1 when it cannot listen or clocks were left set.
  int serve();

 private:
  // What one user's connections have together.
  struct User {
    size_t sessions = 0;
    double connects = 0;  // that may be taken now
    int64_t connects_ns = 0;
    double work = 0;  // in messages of status, that may be made now; below zero: to be waited for
    int64_t work_ns = 0;
    std::shared_ptr<ByteBudget> budget;
  };
  // The status: a message per device, the totals and the reply, each made when the one before it has left.
  struct StatusAnswer {
    uint64_t serial = 0;
    size_t next = 0;
    std::shared_ptr<const std::vector<uint32_t>> clocks;  // by device
  };
  // Of a session, only one request is read ahead of its answers: see blocked().
  struct Session {
    std::shared_ptr<Connection> connection;  // also a thread's that has an answer to give
    User* user = nullptr;
    bool greeted = false, admin = false, leases = false, paused = false;
    bool apart = false;          // has one of the places kept for administrators
    bool awaits_status = false;  // of a round
    size_t reads = 0;            // of clocks, under way
    int bad = 0;                 // messages that are well formed and not to be
    std::optional<StatusAnswer> answer;
    std::string run;
    uint64_t last_serial = 0;
    int64_t heard_ns = 0;
    double credit = 0;  // requests that may be read now
    int64_t credit_ns = 0, not_before_ns = 0;
  };
  // The reading of all clocks for those who ask for the status. One at a time. A client that asks
  // meanwhile is answered by the next.
  struct Round {
    bool under_way = false;
    uint64_t number = 0;
    size_t missing = 0;
    int64_t begun_ns = 0, deadline_ns = 0;
    std::vector<uint32_t> clocks;
    std::vector<bool> reading;  // by device: a driver that hangs is not asked again
    std::vector<std::pair<SessionId, uint64_t>> askers, next_askers;
  };
  // A process that may not lease a device again, an administrator having revoked its lease.
  struct Ban {
    size_t device = 0;
    pid_t pid = 0;
    uint64_t start_ticks = 0;
  };
  struct Tally {
    uint64_t sessions = 0, requests = 0, foreign = 0, nonsense = 0, replayed = 0, delayed = 0, turned_away = 0;
  };

  // Actions
  void enqueue(Job job) override;
  int mark(const std::string& device, const Holder& holder) override;
  int clear(const std::string& device) override;
  void reply(SessionId session, uint64_t serial, const Answer& answer) override;
  void tell(SessionId session, uint16_t type, const Answer& answer) override;
  uint64_t new_lease_number() override;
  Bytes encode_answer(uint64_t serial, const Answer& answer) const;

  // Threads (worker_pool.cpp); all but make() and answer() with the mutex held.
  using Lock = std::unique_lock<std::mutex>;
  struct Queue {  // of the driver's calls
    bool busy = false;
    std::deque<Job> urgent, jobs, reads;  // restoring a clock goes first, what changes nothing last
    bool empty() const { return urgent.empty() && jobs.empty() && reads.empty(); }
  };
  void start_workers();
  void work();
  void enter(Lock* lock);
  // The main thread's part, while it has to see to something itself.
  void wait_until(Lock* lock, int64_t deadline_ns, const std::function<bool()>& done);
  void make_call(Lock* lock);
  Outcome make(const Job& job);
  void answer(Connection* connection, const Job& job, const Outcome& outcome) const;
  void finished(const Done& done);
  void set_timer();

  // The loop (server.cpp)
  bool listen();
  bool listen_at(const char* suffix, mode_t mode, gid_t group);
  void handle(uint64_t tag, uint32_t events);
  [[noreturn]] void give_up() const;
  int64_t next_ns() const;
  void keep_time(int64_t now_ns);
  void take_signals();
  void take_input();
  void begin_stop();
  // Once: what is watched is watched again when its event has been handled.
  void watch(int fd, uint64_t tag, uint32_t events) const;

  // Sessions (sessions.cpp)
  // False: there are more, to be taken from listen_again_ns_ on.
  bool accept_some(int listener);
  void admit(int socket, int64_t now_ns);
  void refuse_beyond_descriptors(int listener);
  // Why the connection is refused; empty: it is not.
  std::string refusal(const Peer& peer, bool apart, User* user, int64_t now_ns) const;
  User* user_of(uid_t uid, int64_t now_ns);
  void close_session(SessionId id, Ending ending);
  void sweep();
  void attend(SessionId id, uint32_t events);
  bool spend_credit(Session* session, int64_t now_ns) const;
  void pause(Session* session, int64_t now_ns);
  void send(SessionId id, Bytes message);
  // Whether the session is not read until it has taken what it asked for.
  static bool blocked(const Session& session);
  void watch_session(SessionId id, const Session& session) const;
  // False: the session has ended, or is read later.
  bool take_message(SessionId id, Session* session);
  void end_bad_session(SessionId id, const Session& session, const char* what);
  Session* find(SessionId id);

  // Requests (requests.cpp)
  void serve_request(SessionId id, Session* session, const Received& received, int64_t now_ns);
  void greet(SessionId id, Session* session, const Request& request);
  void acquire(SessionId id, const Session& session, const Request& request, int file, int64_t now_ns);
  void revoke(SessionId id, const Session& session, const Request& request, int64_t now_ns);
  void restore(SessionId id, const Session& session, const Request& request, int64_t now_ns);
  void refuse(SessionId id, uint64_t serial, int32_t status, const std::string& text);
  void ban(size_t device, const Holder& holder);
  void end_and_ban(size_t device, uid_t by, int64_t now_ns);
  bool banned(size_t device, const Peer& peer) const;
  // Devices of that name, all for ""; empty: there is none.
  std::vector<size_t> named(const std::string& device) const;

  // Status (requests.cpp)
  void query_status(SessionId id, Session* session, uint64_t serial, int64_t now_ns);
  void begin_round(int64_t now_ns);
  void take_reading(const Done& done);
  void end_round();
  void charge(Session* session, double messages, int64_t now_ns) const;
  // Goes on with the answer as far as the socket takes it.
  void go_on(SessionId id, Session* session);
  Bytes next_part(Session* session);
  Bytes device_part(const Session& session, const StatusAnswer& answer, size_t device) const;
  Bytes totals_part(uint64_t serial) const;

  ServerSettings settings_;
  StateFile* state_;
  SocketPlace* place_;
  GpuDriver* driver_;
  LeaseTable table_;
  int epoll_ = -1, bell_ = -1, timer_ = -1, signals_ = -1, spare_ = -1;
  std::vector<int> listeners_;  // for all users, and root's own
  std::mutex mutex_;
  std::condition_variable changed_;  // for the main thread
  std::atomic<int> entering_{0};     // threads that have something to do and wait for the mutex
  std::condition_variable entered_;
  Queue queue_;
  std::vector<std::thread> workers_;
  int64_t timer_ns_ = INT64_MAX;  // when it will ring
  bool serving_ = false;          // the main thread waits for nothing but the stop
  bool over_ = false;
  ByteBudget unsent_;  // of all sessions
  std::map<uid_t, User> users_;
  size_t apart_ = 0;  // sessions that have a place kept for administrators
  std::map<SessionId, Session> sessions_;
  std::vector<std::pair<SessionId, Ending>> closing_;  // ended while others may still be talking of them
  SessionId next_session_ = 1;
  Round round_;
  std::deque<Ban> bans_;
  Tally tally_;
  int64_t listen_again_ns_ = 0;
  int64_t heartbeats_due_ns_ = 0, watchdog_due_ns_ = 0, watchdog_ns_ = 0;
  bool input_ended_ = false, stopping_ = false;
  int64_t stop_by_ns_ = 0;
};

}  // namespace powerccl::daemon
