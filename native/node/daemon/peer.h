// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection, and what they have shown that they may do. All of it is from the kernel:
// nothing that a client says of itself is believed.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/config.h"

namespace powerccl::daemon {

struct Peer {
  pid_t pid = 0;  // 0: of another pid namespace
  uid_t uid = 0;
  gid_t gid = 0;
  // In a container, while the daemon is not, or is in the pid namespace of the host. Its uid 0 has no rights of root.
  bool contained = false;
  std::vector<gid_t> groups;
  uint64_t start_ticks = 0;  // with pid: this process and no later one of that number
  int pidfd = -1;            // readable once the process has ended; -1: this kernel has none
};

// Process and user of a fresh connection (SO_PEERCRED), which is enough to refuse it.
bool read_credentials(int socket, Peer* peer);
// Its groups too (SO_PEERGROUPS).
void read_groups(int socket, Peer* peer);
// And its start time and pidfd. False: it has gone already, or there is no descriptor left for it.
bool open_process(Peer* peer);

bool is_root(const Peer& peer);
bool may_lease(const Peer& peer, const Config& config);
bool may_administer(const Peer& peer, const Config& config);

// Whether `fd`, which a client passed, is `file` opened for reading and writing. The proof is that the kernel let that
// process open it there, under its user, groups, namespaces and cgroup. (A path-only descriptor proves nothing and is
// refused.)
bool shows_file(int fd, const std::string& file);

}  // namespace powerccl::daemon
