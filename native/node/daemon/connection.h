// SPDX-License-Identifier: Apache-2.0
// One client's socket: whole messages in, with who sent them and what they passed along; whole messages out. Sending is
// safe from several threads; all else is the loop's.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "daemon/messages.h"
#include "daemon/peer.h"

namespace powerccl::daemon {

// A file that a user passed, closed by that user's thread.
class Fd {
 public:
  Fd() = default;
  Fd(int fd, uid_t uid) : fd_(fd), uid_(uid) {}
  ~Fd();
  Fd(Fd&& other) noexcept;
  Fd& operator=(Fd&& other) noexcept;
  int get() const { return fd_; }

 private:
  int fd_ = -1;
  uid_t uid_ = 0;
};

struct Received {
  enum Kind { kMessage, kNothing, kForeign, kNonsense, kEnd } kind = kNothing;
  Request request;
  Fd file;  // the first one passed; further ones are closed
};

// Bytes of memory that wait to be sent, of a user's connections together, and as part of `whole` of all users'.
class ByteBudget {
 public:
  explicit ByteBudget(size_t most, ByteBudget* whole = nullptr) : most_(most), whole_(whole) {}
  // False: that would be more than there may be.
  bool take(size_t bytes);
  void give_back(size_t bytes);

 private:
  size_t most_;
  ByteBudget* whole_;
  std::atomic<size_t> used_{0};
};

class Connection {
 public:
  // Takes the socket over. What the kernel keeps of it unread is bounded too.
  Connection(int socket, Peer peer, std::shared_ptr<ByteBudget> budget);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The next message. kForeign: another process than the peer sent it (it inherited or was handed the socket).
  // kNonsense: not of this protocol. kEnd: the other end is closed.
  Received receive();
  // False: the peer is gone or does not read what it asked for, and the connection has to end.
  bool send(Bytes message);
  // Goes on with what did not fit. False: as above.
  bool flush();
  bool has_unsent() const;
  // Whether send() or flush() returned false.
  bool failed() const;
  ByteBudget* budget() const { return budget_.get(); }

  int socket() const { return socket_; }
  const Peer& peer() const { return peer_; }

 private:
  bool flush_locked();

  int socket_;
  Peer peer_;
  std::shared_ptr<ByteBudget> budget_;
  mutable std::mutex mutex_;
  std::deque<Bytes> unsent_;
  size_t unsent_bytes_ = 0;
  bool failed_ = false;
};

// Closing what users passed. Closing a lingering TCP socket, or a file on a user's FUSE file system, takes as long as
// its owner likes. So a thread per user closes that user's descriptors, and no other thread waits for it.
// Does not wait.
void close_later(uid_t uid, int fd);
// Closes a client's socket: now if nothing unread is in it, which could hold descriptors too; else later.
void close_socket(uid_t uid, int socket);
// How many descriptors of the user still wait to be closed.
size_t count_closing(uid_t uid);

}  // namespace powerccl::daemon
