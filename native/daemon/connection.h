// SPDX-License-Identifier: Apache-2.0
// One client's socket: whole messages in, with who sent them and what they passed along; whole messages out. Sending is
// safe from several threads; all else is the loop's.
#pragma once
#include <deque>
#include <mutex>

#include "daemon/messages.h"
#include "daemon/peer.h"

namespace powerccl::daemon {

// Closes what it holds.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& other) noexcept;
  Fd& operator=(Fd&& other) noexcept;
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Received {
  enum Kind { kMessage, kNothing, kForeign, kNonsense, kEnd } kind = kNothing;
  Request request;
  Fd file;  // the first one passed; further ones are closed
};

class Connection {
 public:
  // Takes the socket over.
  Connection(int socket, Peer peer);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The next message. kForeign: another process than the peer sent it (it inherited or was handed the socket);
  // kNonsense: not of this protocol; kEnd: the other end is closed.
  Received receive();
  // False: the peer takes nothing off its socket any more, and the connection has to end.
  bool send(Bytes message);
  // Goes on with what did not fit. False: as above.
  bool flush();
  bool has_unsent() const;

  int socket() const { return socket_; }
  const Peer& peer() const { return peer_; }

 private:
  bool flush_locked();

  int socket_;
  Peer peer_;
  mutable std::mutex mutex_;
  std::deque<Bytes> unsent_;
};

}  // namespace powerccl::daemon
