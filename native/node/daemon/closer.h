// SPDX-License-Identifier: Apache-2.0
// Closing what users passed. Closing a lingering TCP socket, or a file on a user's FUSE file system, takes as long as
// its owner likes. So a thread per user closes that user's descriptors, and no other thread waits for it.
#pragma once
#include <sys/types.h>

#include <cstddef>

namespace powerccl::daemon {

// Does not wait.
void close_later(uid_t uid, int fd);
// Closes a client's socket: now if nothing unread is in it, which could hold descriptors too; else later.
void close_socket(uid_t uid, int socket);
// How many descriptors of the user still wait to be closed.
size_t count_closing(uid_t uid);

}  // namespace powerccl::daemon
