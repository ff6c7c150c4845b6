// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <new>

#include "adapters/mpi/adapter.h"

namespace powerccl::mpi {

ThreadState* ThreadStates::take() {
  const SpinGuard guard(lock_);
  if (free_ != nullptr) {
    ThreadState* thread = free_;
    free_ = thread->next_free;
    return thread;
  }
  const uint32_t index = count_.load(std::memory_order_relaxed);
  if (index == kMost) return nullptr;
  std::atomic<ThreadState*>& chunk = chunks_[index / kInChunk];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    // The kernel gives each page when it is first used.
    constexpr size_t kBytes = sizeof(ThreadState) * kInChunk;
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    chunk.store(static_cast<ThreadState*>(memory), std::memory_order_release);
  }
  auto* thread = new (chunk.load(std::memory_order_relaxed) + index % kInChunk) ThreadState();
  thread->index = static_cast<uint16_t>(index);
  count_.store(index + 1, std::memory_order_release);
  return thread;
}

void ThreadStates::give_back(ThreadState* thread) {
  const SpinGuard guard(lock_);
  thread->next_free = free_;
  free_ = thread;
}

}  // namespace powerccl::mpi
