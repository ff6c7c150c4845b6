// SPDX-License-Identifier: Apache-2.0
// Threads of ours in the job's process.
#pragma once
#include <pthread.h>
#include <stddef.h>

namespace powerccl {

// Starts a thread that takes none of the job's signals. `stack_bytes` 0: as large as the job's threads have it.
// Returns 0 or an errno value.
int start_thread(pthread_t* thread, const char* name, void* (*work)(void*), void* data, size_t stack_bytes = 0);

// Runs `work` with a descriptor table of its own, which is empty. The job's changes to its descriptors do not reach it,
// nor the other way round. Called in a thread of ours, which it occupies meanwhile. `work` makes system calls only, and
// takes no lock. A library that knows a descriptor by its number would find another file behind it. In some sandboxes
// the kernel knows this thread by two numbers. Returns 0, or an errno value where `work` was
// not run.
int run_with_own_descriptors(void (*work)(void*), void* data);

}  // namespace powerccl
