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
#include <cstdio>
#include <cstring>

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

bool any_of(const std::vector<gid_t>& mine, const std::vector<gid_t>& wanted) {
  return std::any_of(mine.begin(), mine.end(),
                     [&](gid_t gid) { return std::find(wanted.begin(), wanted.end(), gid) != wanted.end(); });
}

}  // namespace

bool identify(int socket, Peer* peer) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  peer->pid = credentials.pid;
  peer->uid = credentials.uid;
  peer->groups = groups_of(socket, credentials.gid);
  if (peer->pid <= 0) return true;
  peer->pidfd = static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0));
  peer->start_ticks = device::process_start_ticks(peer->pid);
  return peer->pidfd >= 0 || errno != ESRCH;
}

bool may_lease(const Peer& peer, const Config& config) {
  if (peer.uid == 0 || config.anybody()) return true;
  const auto& uids = config.allowed_uids;
  return std::find(uids.begin(), uids.end(), peer.uid) != uids.end() || any_of(peer.groups, config.allowed_gids);
}

bool may_administer(const Peer& peer, const Config& config) {
  return peer.uid == 0 || any_of(peer.groups, config.admin_gids);
}

bool shows_file(int fd, const std::string& file) {
  struct stat shown{}, named{};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR) return false;
  if (fstat(fd, &shown) != 0 || stat(file.c_str(), &named) != 0) return false;
  // A device is its number, whatever node it was opened by: a container has nodes of its own.
  if (S_ISCHR(named.st_mode)) return S_ISCHR(shown.st_mode) && shown.st_rdev == named.st_rdev;
  return shown.st_dev == named.st_dev && shown.st_ino == named.st_ino;
}

bool bound_to(const Peer& peer, uint32_t thread, int cpu) {
  if (peer.pid <= 0) return false;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%u/status", peer.pid, thread);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  constexpr char kKey[] = "Cpus_allowed_list:";
  const std::string wanted = std::to_string(cpu);
  char line[4096];
  bool bound = false;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, kKey, sizeof kKey - 1) != 0) continue;
    std::string list = line + sizeof kKey - 1;
    list.erase(std::remove_if(list.begin(), list.end(), [](char c) { return c == ' ' || c == '\t' || c == '\n'; }),
               list.end());
    bound = list == wanted;
    break;
  }
  std::fclose(file);
  return bound;
}

}  // namespace powerccl::daemon
