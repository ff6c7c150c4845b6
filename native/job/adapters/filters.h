// SPDX-License-Identifier: Apache-2.0
// Sees a seccomp filter before it is in force, by interposing prctl() and syscall(). Compiled into each library of ours
// that is preloaded. A program that makes the system call itself, without libc, is not seen.
#pragma once
#include "base/seccomp_filter.h"

namespace powerccl::filters {

// Each library that is built with filters.cpp defines this. It is called in the thread that is about to install the
// filter. What makes a call that the filter refuses has to have ended when it returns.
void filter_comes(const SeccompFilter& filter);

}  // namespace powerccl::filters
