// SPDX-License-Identifier: Apache-2.0
#include "base/own_thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace powerccl {
namespace {

constexpr unsigned kUnshare = 2;         // CLOSE_RANGE_UNSHARE
constexpr int kLeastDescriptors = 4096;  // that are closed where /proc does not tell which there are

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
        const int descriptor = static_cast<int>(strtol(entry->d_name, nullptr, 10));
        if (descriptor == listing) continue;
        syscall(SYS_close, descriptor);
        some = true;
      }
    }
  }
}

// Where the kernel is older than 5.9 the new table begins as a copy.
void empty_table() {
  const int listing =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing >= 0) close_all(listing);
  syscall(SYS_close, listing);
  if (listing >= 0) return;
  for (int descriptor = 0; descriptor < kLeastDescriptors; ++descriptor) syscall(SYS_close, descriptor);
}

constexpr size_t kInnerStackBytes = 64 << 10;

// Without libc's function, which would store an error in a variable that is the other thread's meanwhile.
void wait_in_kernel(std::atomic<int>* word) {
#if defined(__x86_64__)
  register long timeout asm("r10") = 0;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_futex), "D"(word), "S"(FUTEX_WAIT), "d"(1), "r"(timeout)
               : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long number asm("x8") = SYS_futex;
  register long first asm("x0") = reinterpret_cast<long>(word);
  register long operation asm("x1") = FUTEX_WAIT;
  register long expected asm("x2") = 1;
  register long timeout asm("x3") = 0;
  asm volatile("svc 0" : "+r"(first) : "r"(number), "r"(operation), "r"(expected), "r"(timeout) : "memory");
#else
  syscall(SYS_futex, word, FUTEX_WAIT, 1, nullptr, nullptr, 0);
#endif
}

struct Work {
  void (*work)(void*);
  void* data;
};

int run_in_new_table(void* given) {
  const Work* task = static_cast<const Work*>(given);
  empty_table();
  task->work(task->data);
  return 0;
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
  // EINVAL: the job's thread-local variables, which are on the stack too, leave no room on so small a one.
  if (error == EINVAL) error = pthread_create(thread, nullptr, work, data);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) pthread_setname_np(*thread, name);
  return error;
}

int run_with_own_descriptors(void (*work)(void*), void* data) {
  Work task{work, data};
  // Linux 5.9 and later. Nothing is copied, so that nothing has to be closed.
  if (syscall(SYS_close_range, 0u, ~0u, kUnshare) == 0) {
    work(data);
    return 0;
  }
  if (unshare(CLONE_FILES) == 0) {
    run_in_new_table(&task);
    return 0;
  }
  // Sandboxes that allow neither allow threads. One without CLONE_FILES has a table of its own. It has this thread's
  // thread-local variables, which no other code uses meanwhile: this thread waits in the kernel until it has ended.
  alignas(16) char stack[kInnerStackBytes];
  std::atomic<int> running{1};
  constexpr int kFlags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
  if (clone(run_in_new_table, stack + sizeof(stack), kFlags, &task, nullptr, nullptr, &running) < 0) return errno;
  while (running.load(std::memory_order_acquire) != 0) wait_in_kernel(&running);
  return 0;
}

}  // namespace powerccl
