// SPDX-License-Identifier: Apache-2.0
// The path at which a daemon listens, and the lock beside it that makes the path one daemon's for life.
//
// Root has a socket of its own beside it, <path>.root. A connection waits behind all that came before it, so one user
// who floods a socket makes all others wait there.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace powerccl::daemon {

inline constexpr char kRootSuffix[] = ".root";

class SocketPlace {
 public:
  SocketPlace() = default;
  ~SocketPlace();
  SocketPlace(const SocketPlace&) = delete;
  SocketPlace& operator=(const SocketPlace&) = delete;

  // Takes <path>.lock. False with a reason: a daemon lives there, or the lock is not ours to take.
  bool take(const std::string& path, std::string* reason);
  // Gives `socket` the path, with that suffix, in place of what a dead daemon left. `group` -1: the daemon's own.
  bool bind(int socket, const char* suffix, mode_t mode, gid_t group, std::string* reason);
  // Removes what was bound, unless another file is there now. The lock stays taken.
  void remove_sockets();

 private:
  bool open_lock(const std::string& lock, std::string* reason);

  struct Bound {
    std::string path;
    dev_t device;
    ino_t inode;
  };
  std::string path_;
  int lock_ = -1;
  std::vector<Bound> bound_;
};

}  // namespace powerccl::daemon
