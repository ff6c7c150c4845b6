// SPDX-License-Identifier: Apache-2.0
#include "runtime/own_thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace powerccl {
namespace {

constexpr unsigned kUnshare = 2;  // CLOSE_RANGE_UNSHARE
constexpr char kOwnDescriptors[] = "/proc/thread-self/fd";

// A copy of a descriptor would keep the other end of a job's pipe waiting for as long as this thread lives.
void close_all(int listing) {
  alignas(dirent64) char entries[2048];
  // What is closed while it is listed may hide what follows, so that the list is read again until it is empty.
  for (bool some = true; some;) {
    some = false;
    syscall(SYS_lseek, listing, 0, SEEK_SET);
    long length = 0;
    while ((length = syscall(SYS_getdents64, listing, entries, sizeof(entries))) > 0) {
      for (long at = 0; at < length;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        const int descriptor = atoi(entry->d_name);
        if (descriptor == listing) continue;
        syscall(SYS_close, descriptor);
        some = true;
      }
    }
  }
  syscall(SYS_close, listing);
}

}  // namespace

int start_thread(pthread_t* thread, const char* name, void* (*work)(void*), void* data, size_t stack_bytes) {
  // The job's signals are for the job's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  int error = EINVAL;
  if (stack_bytes != 0 && pthread_attr_init(&attributes) == 0) {
    if (pthread_attr_setstacksize(&attributes, stack_bytes) == 0) {
      error = pthread_create(thread, &attributes, work, data);
    }
    pthread_attr_destroy(&attributes);
  }
  // EINVAL: the job's thread-local variables, which lie on the stack too, leave no room on so small a one.
  if (error == EINVAL) error = pthread_create(thread, nullptr, work, data);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) pthread_setname_np(*thread, name);
  return error;
}

bool take_own_descriptors() {
  // Linux 5.9 and later. Nothing is copied, so that nothing has to be closed.
  if (syscall(SYS_close_range, 0u, ~0u, kUnshare) == 0) return true;
  const int probe = static_cast<int>(syscall(SYS_openat, AT_FDCWD, kOwnDescriptors, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (probe < 0) return false;
  syscall(SYS_close, probe);
  if (unshare(CLONE_FILES) != 0) return false;
  const int listing =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, kOwnDescriptors, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing >= 0) close_all(listing);
  return true;
}

}  // namespace powerccl
