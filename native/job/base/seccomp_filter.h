// SPDX-License-Identifier: Apache-2.0
// What a seccomp filter that the job is about to install would do to our own system calls. A filter may end the process
// for a call that it does not list, and with SECCOMP_FILTER_FLAG_TSYNC it holds for our threads as well.
#pragma once
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

struct sock_filter;

// By number, since the headers of glibc 2.17's time lack them.
#define POWERCCL_SYS_CLONE3 435
#define POWERCCL_SYS_CLOSE_RANGE 436
#if defined(__x86_64__)
#define POWERCCL_SYS_RSEQ 334
#else
#define POWERCCL_SYS_RSEQ 293
#endif

namespace powerccl {

// A system call of ours; arguments that are not constant are 0.
struct OwnCall {
  const char* name;
  long number;
  uint64_t arguments[2];
};

// A filter, as seccomp(2) takes it; or strict mode, where `code` is null.
struct SeccompFilter {
  const sock_filter* code = nullptr;
  unsigned length = 0;

  // Whether the call is carried out as if there were no filter. A program that the kernel would not accept allows all.
  bool allows(const OwnCall& call) const;
  // The name of the first call that is not allowed; null: all are.
  template <size_t kCount>
  const char* refuses(const OwnCall (&calls)[kCount]) const {
    for (const OwnCall& call : calls) {
      if (!allows(call)) return call.name;
    }
    return nullptr;
  }
  // Whether a line can still be written to stderr once the filter holds.
  bool allows_saying() const;
};

// What beginning to record calls, before anything else of ours.
inline constexpr OwnCall kBeginningCalls[] = {
    {"openat", SYS_openat, {}},
    {"read", SYS_read, {}},
    {"close", SYS_close, {}},
    {"readlinkat", SYS_readlinkat, {}},
    {"newfstatat", SYS_newfstatat, {}},
    {"uname", SYS_uname, {}},
    {"mmap", SYS_mmap, {}},
    {"munmap", SYS_munmap, {}},
    {"madvise", SYS_madvise, {}},
    {"mprotect", SYS_mprotect, {}},
    {"rt_sigprocmask", SYS_rt_sigprocmask, {}},
    {"clone",
     SYS_clone,
     {CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
      CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID}},
    {"clone3", POWERCCL_SYS_CLONE3, {}},
    {"set_robust_list", SYS_set_robust_list, {}},
    {"rseq", POWERCCL_SYS_RSEQ, {}},
    {"close_range", POWERCCL_SYS_CLOSE_RANGE, {}},
};

// What recording to a trace calls while ranks communicate.
inline constexpr OwnCall kRecordingCalls[] = {
    {"futex", SYS_futex, {0, FUTEX_WAIT_PRIVATE}},
    {"futex", SYS_futex, {0, FUTEX_WAKE_PRIVATE}},
    {"pwrite64", SYS_pwrite64, {}},
    {"fstat", SYS_fstat, {}},
    {"clock_nanosleep", SYS_clock_nanosleep, {}},
    {"getpid", SYS_getpid, {}},
    {"write", SYS_write, {2}},
};

// Says that nothing is recorded, from now on or at all, because of such a filter. Not where that takes a call that is
// refused as well.
struct Refusal {
  const char* call = nullptr;  // null: none
  bool may_say = false;
  explicit operator bool() const { return call != nullptr; }
  void say_so() const;
  // Before anything is recorded: leaves word in the run folder, for the summary. The filter does not hold yet.
  void leave_word() const;
  // For the trace: cut to a note's length.
  void write_note(char* text, size_t size) const;
};

}  // namespace powerccl
