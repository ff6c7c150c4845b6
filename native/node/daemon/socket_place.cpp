// SPDX-License-Identifier: Apache-2.0
#include "daemon/socket_place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace powerccl::daemon {
namespace {

constexpr int kAttempts = 16;  // each loses a race against another daemon that ends at the same moment

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

bool same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Whether nothing lives at the path. The socket of a dead daemon is removed.
bool clear_path(const std::string& path, std::string* reason) {
  struct stat there{};
  if (lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT) return true;
    *reason = path + " cannot be inspected: " + std::strerror(errno);
    return false;
  }
  if (!S_ISSOCK(there.st_mode)) {
    *reason = path + " exists and is not a socket; hint: remove it";
    return false;
  }
  const int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_un address = address_of(path);
  const bool connected = probe >= 0 && connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  if (probe >= 0) close(probe);
  if (!connected && (error == ECONNREFUSED || error == ENOENT)) {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return true;
    *reason = path + " is left from a dead daemon and cannot be removed: " + std::strerror(errno);
  } else if (connected || error == EAGAIN) {
    *reason = "another powerccld listens at " + path;
  } else if (error == EPROTOTYPE) {
    *reason = "another program listens at " + path;
  } else {
    *reason = path + " exists, but connecting to it failed: " + std::strerror(error);
  }
  return false;
}

}  // namespace

SocketPlace::~SocketPlace() {
  remove_sockets();
  if (lock_ < 0) return;
  // A process that opened the file before its removal finds another or none under its name, and opens it again.
  unlink((path_ + ".lock").c_str());
  close(lock_);
}

bool SocketPlace::take(const std::string& path, std::string* reason) {
  path_ = path;
  const std::string lock = path + ".lock";
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (!open_lock(lock, reason)) return false;
    if (lock_ < 0) continue;
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      *reason = errno == EWOULDBLOCK ? "another powerccld listens at " + path + ", or is about to"
                                     : lock + " cannot be locked: " + std::strerror(errno);
      close(lock_);
      lock_ = -1;
      return false;
    }
    struct stat held{}, named{};
    if (fstat(lock_, &held) == 0 && lstat(lock.c_str(), &named) == 0 && same_file(held, named)) {
      // One of an older version has no lock.
      if (clear_path(path, reason)) return true;
      unlink(lock.c_str());
      close(lock_);
      lock_ = -1;
      return false;
    }
    close(lock_);  // the daemon before removed its lock as it ended
    lock_ = -1;
  }
  *reason = lock + " changes: another powerccld is starting or ending";
  return false;
}

// Leaves lock_ at -1 where the file came or went meanwhile.
bool SocketPlace::open_lock(const std::string& lock, std::string* reason) {
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ >= 0) return true;
  // O_NONBLOCK: a FIFO in its place would keep us waiting for a reader.
  if (errno == EEXIST) lock_ = open(lock.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat about{};
  if (lock_ < 0) {
    if (errno == ENOENT && lstat(lock.substr(0, lock.rfind('/') + 1).c_str(), &about) == 0) return true;
    *reason = errno == ELOOP ? lock + " is a symbolic link; hint: remove it"
                             : lock + " cannot be opened: " + std::strerror(errno);
    return false;
  }
  if (fstat(lock_, &about) != 0 || !S_ISREG(about.st_mode))
    *reason = lock + " is not a regular file; hint: remove it";
  else if (about.st_uid != geteuid())
    *reason = lock + " belongs to user " + std::to_string(about.st_uid) + "; hint: remove it, or listen elsewhere";
  else
    return true;
  close(lock_);
  lock_ = -1;
  return false;
}

bool SocketPlace::bind(int socket, const char* suffix, mode_t mode, gid_t group, std::string* reason) {
  const std::string path = path_ + suffix;
  const auto failed = [&](const char* what) {
    *reason = path + what + std::strerror(errno);
    return false;
  };
  if (!clear_path(path, reason)) return false;
  // The file gets the socket's own mode, so it never has another one, and no name has to be followed to change it.
  if (fchmod(socket, mode) != 0) return failed(": cannot set its mode: ");
  const sockaddr_un address = address_of(path);
  const mode_t before = umask(0);
  const int bound = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  umask(before);
  if (bound != 0) return failed(": cannot listen: ");
  const int file = open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  struct stat about{};
  const bool is_own = file >= 0 && fstat(file, &about) == 0 && S_ISSOCK(about.st_mode) && about.st_uid == geteuid();
  if (is_own) bound_.push_back({path, about.st_dev, about.st_ino});
  const bool given = is_own && (group == static_cast<gid_t>(-1) ||
                                fchownat(file, "", static_cast<uid_t>(-1), group, AT_EMPTY_PATH) == 0);
  const int error = errno;
  if (file >= 0) close(file);
  errno = error;
  if (given) return true;
  return failed(is_own ? ": cannot set its group: " : " was replaced by another process: ");
}

void SocketPlace::remove_sockets() {
  for (const Bound& bound : bound_) {
    struct stat there{};
    if (lstat(bound.path.c_str(), &there) == 0 && there.st_dev == bound.device && there.st_ino == bound.inode)
      unlink(bound.path.c_str());
  }
  bound_.clear();
}

}  // namespace powerccl::daemon
