// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "device/process.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace powerccl::daemon {
namespace {

std::vector<gid_t> groups_of(int socket, gid_t first) {
  std::vector<gid_t> groups(64);
  for (;;) {
    auto length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0) {
      groups.resize(length / sizeof(gid_t));
      break;
    }
    if (errno != ERANGE || groups.size() >= 65536) {
      groups.clear();  // before Linux 4.13: the first group only
      break;
    }
    groups.resize(length / sizeof(gid_t) + 1);
  }
  groups.push_back(first);
  return groups;
}

bool any_of(const std::vector<gid_t>& own_groups, const std::vector<gid_t>& wanted) {
  return std::any_of(own_groups.begin(), own_groups.end(),
                     [&](gid_t gid) { return std::find(wanted.begin(), wanted.end(), gid) != wanted.end(); });
}

}  // namespace

bool read_credentials(int socket, Peer* peer) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  peer->pid = credentials.pid;
  peer->uid = credentials.uid;
  peer->gid = credentials.gid;
  peer->contained = peer->uid == 0 && peer->pid > 0 && device::process_is_contained(peer->pid);
  return true;
}

void read_groups(int socket, Peer* peer) {
  peer->groups = groups_of(socket, peer->gid);
}

bool open_process(Peer* peer) {
  if (peer->pid <= 0) return true;
  peer->pidfd = static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0));
  // Before Linux 5.3, or kept from it by a filter of system calls, the connection's end has to tell.
  if (peer->pidfd < 0 && (errno == ESRCH || errno == EMFILE || errno == ENFILE)) return false;
  peer->start_ticks = device::process_start_ticks(peer->pid);
  return true;
}

bool is_root(const Peer& peer) {
  return peer.uid == 0 && !peer.contained;
}

bool may_lease(const Peer& peer, const Config& config) {
  if (is_root(peer) || config.anybody()) return true;
  const auto& uids = config.allowed_uids;
  return std::find(uids.begin(), uids.end(), peer.uid) != uids.end() || any_of(peer.groups, config.allowed_gids);
}

bool may_administer(const Peer& peer, const Config& config) {
  return is_root(peer) || any_of(peer.groups, config.admin_gids);
}

bool shows_file(int fd, const std::string& file) {
  struct stat named{};
  struct statx shown{};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR) return false;
  // As it is known here: to ask a file system of the client's own could take for ever.
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &shown) != 0) return false;
  if (stat(file.c_str(), &named) != 0) return false;
  // A device is its number, whatever node it was opened by: a container has nodes of its own.
  if (S_ISCHR(named.st_mode))
    return S_ISCHR(shown.stx_mode) && makedev(shown.stx_rdev_major, shown.stx_rdev_minor) == named.st_rdev;
  return makedev(shown.stx_dev_major, shown.stx_dev_minor) == named.st_dev && shown.stx_ino == named.st_ino;
}

}  // namespace powerccl::daemon
