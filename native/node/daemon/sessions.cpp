// SPDX-License-Identifier: Apache-2.0
// The server's connections: who is let in, how fast each is read, and how each ends.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/clock.h"
#include "daemon/connection.h"
#include "daemon/log.h"
#include "daemon/server.h"

namespace powerccl::daemon {
namespace {

constexpr int64_t kMs = 1'000'000;
// For so long connections are taken in a row, some thirty of them. Then it is the turn of root's and of those that are
// there. With twice the time root waits longer while a flood lasts. With half of it more time is spent on turning.
constexpr int64_t kAcceptNs = 1 * kMs;
// After such a row no connection is taken for so long: a flood costs a quarter of a core. With half of it the daemon
// has used up its share of a busy machine, and root waits for a processor.
constexpr int64_t kRestNs = 3 * kMs;
constexpr int64_t kPauseNs = 10 * kMs;  // until one that was too fast is looked at again
constexpr size_t kMostReads = 16;       // of clocks by one session, under way
// Well-formed messages out of turn or said before. A faulty program sends them without end; the runtime sends none.
constexpr int kMostBad = 64;
// Descriptors of a user that wait to be closed, above which nothing more is taken from the user. One message passes
// at most 253, and a well-behaved user has none that wait.
constexpr size_t kMostClosing = 256;
// Of one user, what waits to be read: a twentieth of all users' would be little for 128 sessions of a large machine.
constexpr size_t kMostUserBytes = 4u << 20;
constexpr size_t kManyUsers = 1024;  // then those without a session are forgotten

double refilled(double level, double most, double a_second, int64_t since_ns, int64_t now_ns) {
  return std::min(most, level + static_cast<double>(now_ns - since_ns) / 1e9 * a_second);
}

// Of one user, also as a burst. A job's ranks come together, and come again when the daemon was restarted.
double connects_a_second(const Config& config) {
  return static_cast<double>(std::max<int64_t>(32, config.access_sessions_per_user));
}

void turn_away(int socket, uid_t uid, const std::string& why) {
  Answer answer;
  answer.status = POWERCCL_LEASE_TOO_MANY;
  answer.text = why;
  const Bytes message = encode_reply(POWERCCL_LEASE_REPLY, 0, answer);
  ::send(socket, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  close_socket(uid, socket);
}

}  // namespace

bool Server::accept_some(int listener) {
  const int64_t begin = now_ns();
  int64_t now = begin;
  for (; now - begin < kAcceptNs; now = now_ns()) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0)
      admit(socket, now);
    else if (errno == EMFILE || errno == ENFILE)
      refuse_beyond_descriptors(listener);
    else if (errno != ECONNABORTED && errno != EINTR)
      return true;
  }
  listen_again_ns_ = now + kRestNs;
  return false;
}

// With no descriptor left no client would get an answer, and the listener would report the same connection for ever.
void Server::refuse_beyond_descriptors(int listener) {
  log_for(0, Topic::kSessions, kError, "cannot accept a connection: %s", std::strerror(errno));
  close(spare_);
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket >= 0) turn_away(socket, 0, "powerccld has no file descriptors left");
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

Server::User* Server::user_of(uid_t uid, int64_t now) {
  if (users_.size() >= kManyUsers)
    std::erase_if(users_, [&](const auto& user) {
      return user.second.sessions == 0 && now - user.second.connects_ns > 1000 * kMs && user.first != uid;
    });
  const auto [entry, fresh] = users_.try_emplace(uid);
  User& user = entry->second;
  if (fresh) {
    user.connects = connects_a_second(settings_.config);
    user.work = static_cast<double>(settings_.config.access_requests_per_s);
    user.connects_ns = user.work_ns = now;
    user.budget = std::make_shared<ByteBudget>(kMostUserBytes, &unsent_);
  }
  return &user;
}

std::string Server::refusal(const Peer& peer, bool apart, User* user, int64_t now) const {
  const Config& config = settings_.config;
  const auto most = static_cast<size_t>(config.access_sessions);
  const std::string name = "user " + std::to_string(peer.uid);
  if ((apart ? apart_ : sessions_.size() - apart_) >= most)
    return "all " + std::to_string(most) + " connections are taken (access.sessions)";
  if (count_closing(peer.uid) > kMostClosing) return "files that " + name + " passed cannot be closed";
  if (is_root(peer)) return "";
  if (static_cast<int64_t>(user->sessions) >= config.access_sessions_per_user)
    return name + " has " + std::to_string(user->sessions) + " connections already (access.sessions_per_user)";
  const double connects = connects_a_second(config);
  user->connects = refilled(user->connects, connects, connects, user->connects_ns, now);
  user->connects_ns = now;
  if (user->connects < 1) return name + " connects too often: again in a second";
  user->connects -= 1;
  return "";
}

void Server::admit(int socket, int64_t now) {
  Peer peer;
  if (!read_credentials(socket, &peer)) return close_socket(0, socket);
  const Config& config = settings_.config;
  if (!config.admin_gids.empty()) read_groups(socket, &peer);
  const bool apart = may_administer(peer, config);
  User* user = user_of(peer.uid, now);
  if (const std::string why = refusal(peer, apart, user, now); !why.empty()) {
    ++tally_.turned_away;
    log_for(peer.uid, Topic::kSessions, kWarning, "process %d is turned away: %s", peer.pid, why.c_str());
    return turn_away(socket, peer.uid, why);
  }
  if (config.admin_gids.empty()) read_groups(socket, &peer);
  if (!open_process(&peer)) return close_socket(peer.uid, socket);
  const SessionId id = next_session_++;
  Session session;
  session.connection = std::make_shared<Connection>(socket, std::move(peer), user->budget);
  session.user = user;
  session.apart = apart;
  session.heard_ns = session.credit_ns = now;
  session.credit = static_cast<double>(config.access_requests_per_s) / 2;
  watch(socket, tag_of(Source::kSession, id), EPOLLIN);
  if (session.connection->peer().pidfd >= 0)
    watch(session.connection->peer().pidfd, tag_of(Source::kPeer, id), EPOLLIN);
  // Who never says hello does not stay.
  const int64_t due = now + config.access_heartbeat_ms * kMs;
  heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
  sessions_.emplace(id, std::move(session));
  ++user->sessions;
  if (apart) ++apart_;
  ++tally_.sessions;
}

Server::Session* Server::find(SessionId id) {
  const auto entry = sessions_.find(id);
  return entry == sessions_.end() ? nullptr : &entry->second;
}

void Server::close_session(SessionId id, Ending ending) {
  Session* session = find(id);
  if (session == nullptr) return;
  table_.end_session(id, ending, now_ns());
  --session->user->sessions;
  if (session->apart) --apart_;
  // The socket may be closed later.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, session->connection->socket(), nullptr);
  sessions_.erase(id);  // closes the pidfd, which leaves epoll by that
}

void Server::sweep() {
  while (!closing_.empty()) {
    const auto closing = std::exchange(closing_, {});
    for (const auto& [id, ending] : closing) close_session(id, ending);
  }
  if (input_ended_ && sessions_.empty()) begin_stop();
}

bool Server::spend_credit(Session* session, int64_t now) const {
  const auto rate = static_cast<double>(settings_.config.access_requests_per_s);
  session->credit = refilled(session->credit, rate / 2, rate, session->credit_ns, now);
  session->credit_ns = now;
  if (session->credit < 1 || now < session->not_before_ns) return false;
  if (count_closing(session->connection->peer().uid) > kMostClosing) return false;
  session->credit -= 1;
  return true;
}

void Server::pause(Session* session, int64_t now) {
  ++tally_.delayed;
  session->paused = true;
  const int64_t due = now + kPauseNs;
  heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
}

bool Server::blocked(const Session& session) {
  return session.answer || session.awaits_status || session.reads >= kMostReads || session.connection->has_unsent();
}

void Server::attend(SessionId id, uint32_t events) {
  Session* session = find(id);
  if (session == nullptr || session->paused) return;
  if (blocked(*session)) {
    // What it has asked before it went is of no use to it.
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 || !session->connection->flush()) return close_session(id, Ending::kGone);
    go_on(id, session);
  } else if (!take_message(id, session)) {
    // One message, and it is another thread's turn: this one may be about to make a device call.
    return;
  }
  session = find(id);
  if (session != nullptr && !session->paused) watch_session(id, *session);
}

bool Server::take_message(SessionId id, Session* session) {
  const int64_t now = now_ns();
  if (!spend_credit(session, now)) {
    pause(session, now);  // read later: only the sender waits
    return false;
  }
  const Received received = session->connection->receive();
  switch (received.kind) {
    case Received::kNothing:
      session->credit += 1;
      return true;
    case Received::kEnd:
      close_session(id, Ending::kGone);
      return false;
    case Received::kForeign:
      ++tally_.foreign;
      return true;
    case Received::kNonsense: {
      ++tally_.nonsense;
      Answer answer;
      answer.status = POWERCCL_LEASE_BAD_MESSAGE;
      answer.text = "not a message of lease protocol version " + std::to_string(POWERCCL_LEASE_VERSION);
      session->connection->send(encode_reply(POWERCCL_LEASE_REPLY, 0, answer));
      end_bad_session(id, *session, "does not speak the lease protocol");
      return false;
    }
    case Received::kMessage:
      serve_request(id, session, received, now);
      session = find(id);
      if (session == nullptr) return false;
      if (session->bad < kMostBad) return true;
      end_bad_session(id, *session, "keeps sending messages without effect");
      return false;
  }
  return true;
}

void Server::end_bad_session(SessionId id, const Session& session, const char* what) {
  const Peer& peer = session.connection->peer();
  log_for(peer.uid, Topic::kMessages, kWarning, "process %d of user %u %s: its connection is closed", peer.pid,
          peer.uid, what);
  close_session(id, Ending::kGone);
}

void Server::send(SessionId id, Bytes message) {
  Session* session = find(id);
  if (session == nullptr) return;
  if (!session->connection->send(std::move(message)))
    closing_.emplace_back(id, Ending::kGone);
  else if (session->connection->has_unsent() && !session->paused)
    watch_session(id, *session);
}

void Server::watch_session(SessionId id, const Session& session) const {
  uint32_t events = 0;  // of a blocked one that has nothing to take: only its end
  if (session.answer || session.connection->has_unsent())
    events = EPOLLOUT;
  else if (!blocked(session))
    events = EPOLLIN;
  watch(session.connection->socket(), tag_of(Source::kSession, id), events);
}

}  // namespace powerccl::daemon
