// SPDX-License-Identifier: Apache-2.0
// What the library's idle loop calls.
#include <sched.h>

#include "doors/mpi/door.h"

using namespace powerccl;
using namespace powerccl::mpi;

namespace {

void idle(ThreadState* thread) {
  if (thread->by_request) return;
  const bool progressed = thread->polls > 1;
  thread->polls = 0;
  thread->waiter.idle(g_door.plan, progressed);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int sched_yield() {
  ThreadState* thread = t_thread;
  if (thread == nullptr || !thread->inside) return static_cast<int>(syscall(SYS_sched_yield));
  idle(thread);
  return 0;
}

// UCX's own declaration: unsigned ucp_worker_progress(ucp_worker_h). Returns how many things moved.
extern "C" __attribute__((visibility("default"))) unsigned ucp_worker_progress(void* worker) {
  using Progress = unsigned (*)(void*);
  static std::atomic<Progress> behind{nullptr};
  Progress progress = behind.load(std::memory_order_relaxed);
  if (progress == nullptr) {
    progress = reinterpret_cast<Progress>(next_symbol("ucp_worker_progress"));
    if (progress == nullptr) return 0;
    behind.store(progress, std::memory_order_relaxed);
  }
  const unsigned moved = progress(worker);
  ThreadState* thread = t_thread;
  if (thread == nullptr || !thread->inside || g_door.library.hook != Hook::kUcx) return moved;
  if (moved == 0) {
    idle(thread);
  } else {
    thread->polls = 2;
  }
  return moved;
}
