// SPDX-License-Identifier: Apache-2.0
// System calls whose functions glibc 2.17 does not have under today's names (native/libc/versions.h): stat() and its
// kind until 2.33, getrandom() until 2.25. On 64-bit machines the kernel fills in the same `struct stat` as libc.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace powerccl {

// Each returns 0, or -1 with errno set.
inline int status_of_path(const char* path, struct stat* status) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}
inline int status_of_link(const char* path, struct stat* status) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW));
}
inline int status_of_file(int descriptor, struct stat* status) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, status));
}

// Fills `bytes` of `data`; false where the kernel has no random numbers to give yet.
inline bool fill_randomly(void* data, size_t bytes) {
  constexpr unsigned kWithoutWaiting = 1;  // GRND_NONBLOCK
  return syscall(SYS_getrandom, data, bytes, kWithoutWaiting) == static_cast<long>(bytes);
}

}  // namespace powerccl
