// SPDX-License-Identifier: Apache-2.0
// One connection to powerccld: whole messages (abi/lease.h) out and in. Nothing here waits past the given deadline, and
// messages are checked on arrival. One thread's but for forget().
//
// The job may close the descriptor and be given its number again, so before each use the socket is shown to be this
// one. Where it is not, the connection is over, and the descriptor is not touched.
#pragma once
#include <stdint.h>

#include "abi/lease.h"

namespace powerccl {

// What the daemon says to one that asks for clocks.
union LeaseMessage {
  powerccl_lease_header header;
  powerccl_lease_welcome welcome;
  powerccl_lease_reply reply;
};

class LeaseConnection {
 public:
  // kNothing: not in time. kGone: it has ended. The others mean that the daemon does not speak this protocol.
  enum class Got { kMessage, kNothing, kGone, kNonsense, kOtherVersion };

  LeaseConnection() = default;
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  // 0 or an errno value, without waiting: EAGAIN where too many wait to be accepted already.
  int open(const char* path);

  // Fills in the header and sends the message, with `file` unless it is -1. 0 or an errno value, without waiting:
  // EAGAIN where the daemon has not read what it was sent before.
  int send(powerccl_lease_header* message, powerccl_lease_type type, uint32_t size, int file = -1);
  // The serial of what was sent last.
  uint64_t serial() const { return serial_; }

  // Waits until `deadline_ns` (CLOCK_MONOTONIC), not at all where that has passed.
  Got receive(LeaseMessage* message, uint64_t deadline_ns);

  // Whether the daemon runs as root or as this very user: then it is believed which file is a GPU's.
  bool trusted() const;

  // Ends the connection, also for copies of it that forked children have.
  void close();
  // A forked child: gives its copy away, and the parent's connection stays.
  void forget();

 private:
  bool is_ours() const;

  int descriptor_ = -1;
  uint64_t inode_ = 0;  // of the socket: no two live at a time with one number
  uint64_t serial_ = 0;
};

}  // namespace powerccl
