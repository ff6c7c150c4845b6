// SPDX-License-Identifier: Apache-2.0
// Closing what users passed. The last close of a TCP socket that lingers, or of a file on somebody's FUSE file system,
// takes as long as its owner likes. So a user's descriptors are closed by a thread of that user's, which nobody waits
// for.
#pragma once
#include <sys/types.h>

#include <cstddef>

namespace powerccl::daemon {

// Returns at once.
void close_later(uid_t uid, int fd);
// Closes a client's socket: now if nothing unread is in it, which could hold descriptors too; else later.
void close_socket(uid_t uid, int socket);
// How many descriptors of the user still wait to be closed.
size_t count_closing(uid_t uid);

}  // namespace powerccl::daemon
