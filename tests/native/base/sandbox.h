// SPDX-License-Identifier: Apache-2.0
// A sandbox as containers have it, in which the kernel refuses the calls that give a thread descriptors of its own.
#pragma once
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace powerccl::test {

enum class Allowed { kAll, kUnshare, kNeither };

// For the rest of this process. False: there is no seccomp here.
inline bool enter_sandbox(Allowed allowed) {
  if (allowed == Allowed::kAll) return true;
  // As kernels before 5.9 answer, and as Docker's profile does.
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 436, 3, 0),  // close_range
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               allowed == Allowed::kNeither ? SECCOMP_RET_ERRNO | EPERM : static_cast<unsigned>(SECCOMP_RET_ALLOW)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
  };
  sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace powerccl::test
