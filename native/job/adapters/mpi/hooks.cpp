// SPDX-License-Identifier: Apache-2.0
// What the library's idle loop calls.
//
// Libraries that poll call sched_yield() only if they are configured to yield. `powerccl run` sets the variables that
// configure them (YIELDING in python/powerccl/launch/mpi.py). wire_open_mpi() configures Open MPI as well.
#include <sched.h>

#include "adapters/mpi/adapter.h"

using namespace powerccl;
using namespace powerccl::mpi;

namespace {

// So many idle polls, some microseconds, pass before the clock is read: short calls are not slowed by it.
// Not where others want the core: what this rank waits for may be one of them.
constexpr uint32_t kUnwatched = 32;

void idle(ThreadState* thread, const void* place) {
  if (thread->by_request || (++thread->visits <= kUnwatched && !thread->waiter.shares_core())) return;
  thread->waiter.idle(g_adapter.plan, thread->rounds.visit(place));
}

using Progress = unsigned (*)(void*);
std::atomic<Progress> g_progress{nullptr};
using AddTime = void (*)(void*, void*, void*);
std::atomic<AddTime> g_add_time{nullptr};

// The library's own function of this name, as long as it is loaded. Null: there is none.
template <class F>
F behind(std::atomic<F>& known, const char* name) {
  F function = known.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<F>(next_symbol(name));
    known.store(function, std::memory_order_relaxed);
  }
  return function;
}

constexpr uint32_t kPollsBetweenOffers = 256;

// The application itself polls (MPI_Test, MPI_Iprobe) and has other things to do: without us the library would not
// have yielded. It does where others want the core, and now and then to find out.
void polled(ThreadState* thread) {
  if (!thread->waiter.shares_core() && ++thread->polls % kPollsBetweenOffers != 0) return;
  thread->waiter.offer_core(g_adapter.plan, g_adapter.plan.table.now(g_adapter.plan.table.context));
}

}  // namespace

void powerccl::mpi::forget_hooks() {
  g_progress.store(nullptr, std::memory_order_relaxed);
  g_add_time.store(nullptr, std::memory_order_relaxed);
}

extern "C" __attribute__((visibility("default"))) int sched_yield() {
  ThreadState* thread = t_thread;
  const void* caller = __builtin_return_address(0);
  if (thread != nullptr && thread->inside) {
    idle(thread, caller);
  } else if (thread != nullptr && g_adapter.library.has_code_at(caller)) {
    polled(thread);
  } else if (!g_adapter.withdrawn.load(std::memory_order_relaxed) || !g_adapter.library.has_code_at(caller)) {
    return static_cast<int>(syscall(SYS_sched_yield));
  }
  return 0;
}

// UCX's own declaration: unsigned ucp_worker_progress(ucp_worker_h). Returns how many things moved.
extern "C" __attribute__((visibility("default"))) unsigned ucp_worker_progress(void* worker) {
  const Progress progress = behind(g_progress, "ucp_worker_progress");
  if (progress == nullptr) return 0;
  const unsigned moved = progress(worker);
  ThreadState* thread = t_thread;
  if (thread == nullptr || !thread->inside) return moved;
  if (g_adapter.library.hook == Hook::kYield) {
    // MPICH polls UCX once a round. What UCX moves counts for nothing with it, so that round may look idle.
    if (!g_adapter.library.open_mpi) thread->rounds.round(moved == 0 ? 1 : 2);
  } else if (g_adapter.library.hook == Hook::kUcx) {
    if (moved != 0) {
      thread->rounds.moved();
    } else {
      idle(thread, nullptr);  // what moved in shared memory is not seen here
    }
  }
  return moved;
}

// Intel MPI's own, by which its loop adds up the time that it is idle: void MPL_wtime_acc(MPL_time_t* from,
// MPL_time_t* to, MPL_time_t* sum).
extern "C" __attribute__((visibility("default"))) void MPL_wtime_acc(void* from, void* to, void* sum) {
  const AddTime add_time = behind(g_add_time, "MPL_wtime_acc");
  if (add_time != nullptr) add_time(from, to, sum);
  ThreadState* thread = t_thread;
  if (thread != nullptr && thread->inside) thread->rounds.time();
}
