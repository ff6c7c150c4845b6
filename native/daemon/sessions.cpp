// SPDX-License-Identifier: Apache-2.0
// The server's connections: their coming, their pace, their end.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/tags.h"

namespace powerccl::daemon {
void Server::accept_all() {
  for (;;) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      if (errno == EMFILE || errno == ENFILE) log(kError, "no connection can be taken: %s", std::strerror(errno));
      return;
    }
    Peer peer;
    const bool known = identify(socket, &peer);
    const uid_t uid = peer.uid;
    auto connection = std::make_shared<Connection>(socket, std::move(peer));
    if (!known) continue;
    const auto same_user = std::count_if(sessions_.begin(), sessions_.end(),
                                         [&](const auto& entry) { return entry.second.connection->peer().uid == uid; });
    const Config& config = settings_.config;
    if (static_cast<int64_t>(sessions_.size()) >= config.access_sessions ||
        (uid != 0 && same_user >= config.access_sessions_per_user)) {
      Answer answer;
      answer.status = POWERCCL_LEASE_TOO_MANY;
      answer.text = "too many connections";
      connection->send(encode_reply(POWERCCL_LEASE_REPLY, 0, answer));
      continue;
    }
    const SessionId id = next_session_++;
    Session session;
    session.connection = std::move(connection);
    session.heard_ns = session.credit_ns = now_ns();
    session.credit = static_cast<double>(config.access_requests_per_s) / 2;
    watch(socket, tag_of(Source::kSession, id), EPOLLIN);
    if (session.connection->peer().pidfd >= 0)
      watch(session.connection->peer().pidfd, tag_of(Source::kPeer, id), EPOLLIN);
    // Who never says hello does not stay.
    const int64_t due = session.heard_ns + config.access_heartbeat_ms * 1'000'000;
    heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
    sessions_.emplace(id, std::move(session));
    ++tally_.sessions;
  }
}

Server::Session* Server::find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

void Server::close_session(SessionId id, Ending ending) {
  if (find(id) == nullptr) return;
  table_.end_session(id, ending, now_ns());
  sessions_.erase(id);  // closes socket and pidfd, which leaves epoll by that
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
  session->credit = std::min(rate / 2, session->credit + static_cast<double>(now - session->credit_ns) / 1e9 * rate);
  session->credit_ns = now;
  if (session->credit < 1) return false;
  session->credit -= 1;
  return true;
}

void Server::attend(SessionId id, uint32_t events) {
  Session* session = find(id);
  if (session == nullptr || session->paused) return;
  if ((events & EPOLLOUT) != 0 && !session->connection->flush()) return close_session(id, Ending::kGone);
  // One message, and it is another thread's turn: this one may be about to make a device call.
  if (events != EPOLLOUT && !take_message(id, session)) return;
  session = find(id);
  if (session != nullptr && !session->paused) watch_session(id, *session);
}

bool Server::take_message(SessionId id, Session* session) {
  const int64_t now = now_ns();
  if (!spend_credit(session, now)) {
    // Read later: the sender waits, and nobody else does.
    ++tally_.delayed;
    session->paused = true;
    const int64_t due = now + 10'000'000;
    heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
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
      log(kWarning, "process %d of user %u does not speak the lease protocol: its connection is closed",
          session->connection->peer().pid, session->connection->peer().uid);
      close_session(id, Ending::kGone);
      return false;
    }
    case Received::kMessage:
      serve_request(id, session, received, now);
      return true;
  }
  return true;
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
  watch(session.connection->socket(), tag_of(Source::kSession, id),
        session.connection->has_unsent() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

}  // namespace powerccl::daemon
