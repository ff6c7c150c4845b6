// SPDX-License-Identifier: Apache-2.0
// Threads of ours in the job's process.
#ifndef POWERCCL_RUNTIME_OWN_THREAD_H
#define POWERCCL_RUNTIME_OWN_THREAD_H
#include <pthread.h>
#include <stddef.h>

namespace powerccl {

// Starts a thread that takes none of the job's signals. `stack_bytes` 0: as large as the job's threads have it.
// Returns 0 or an errno value.
int start_thread(pthread_t* thread, const char* name, void* (*work)(void*), void* data, size_t stack_bytes = 0);

// Gives the calling thread a descriptor table of its own, which is empty. Nothing that the job does to its descriptors
// reaches the thread's, nor the other way round. Such a thread makes system calls only: a library that knows a
// descriptor by its number would find another file behind it. False: neither the kernel nor a sandbox allows it, and
// the thread shares the job's table.
bool take_own_descriptors();

}  // namespace powerccl
#endif
