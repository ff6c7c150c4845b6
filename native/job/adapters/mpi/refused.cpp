// SPDX-License-Identifier: Apache-2.0
// Seccomp filters that the job installs, and that refuse system calls of this adapter. Recording ends before such a
// filter is in force, and waiting makes no system call afterwards.
#include <linux/prctl.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "adapters/filters.h"
#include "adapters/mpi/adapter.h"

namespace powerccl::mpi {
namespace {

Refusal g_refusal;  // by a filter that came before MPI was up
pthread_mutex_t g_withdrawing = PTHREAD_MUTEX_INITIALIZER;

constexpr OwnCall kYield = {"sched_yield", SYS_sched_yield, {}};
// What waiting calls in the job's threads.
constexpr OwnCall kWaitingCalls[] = {
    kYield,
    {"prctl", SYS_prctl, {PR_SET_TIMERSLACK}},
    {"prctl", SYS_prctl, {PR_GET_TIMERSLACK}},
    {"getrusage", SYS_getrusage, {}},
};

// Threads that are in a call now go on with this plan.
void wait_without_calls(bool may_yield) {
  WaitTable& table = g_adapter.plan.table;
  g_adapter.plan.sleeps = false;
  table.sleep = [](void*, uint64_t) {};
  table.slack = [](void*, uint64_t) { return uint64_t{0}; };
  // `powerccl run` has configured the library to yield, which alone it would not do.
  if (!may_yield) table.yield = [](void*) {};
}

void withdraw(const Refusal& refusal, bool may_yield) {
  if (!g_adapter.armed.exchange(false, std::memory_order_acq_rel)) return;
  wait_without_calls(may_yield);
  record_sums();
  char text[48];
  refusal.write_note(text, sizeof(text));
  g_adapter.trace.end(text);
  g_adapter.withdrawn.store(true, std::memory_order_release);
  // Where collectives have barriers in front, the other ranks expect them of this one as well.
  const bool passes = g_adapter.settings.mode != MpiMode::kPublished;
  for (uint32_t i = 0; passes && i < g_adapter.threads.count(); ++i) {
    __atomic_store_n(&g_adapter.threads[i].inside, true, __ATOMIC_RELAXED);
  }
  if (g_adapter.environment.speaks()) refusal.say_so();
}

}  // namespace

bool is_refused() {
  const Environment& environment = g_adapter.environment;
  if (g_refusal && environment.run_folder[0] != '\0' && environment.speaks()) g_refusal.say_so();
  g_refusal.may_say = false;
  return static_cast<bool>(g_refusal);
}

}  // namespace powerccl::mpi

void powerccl::filters::filter_comes(const SeccompFilter& filter) {
  using namespace powerccl::mpi;
  const bool began = g_adapter.process != 0;
  // A child after vfork() shares this memory; its filter is not its parent's.
  if (began && g_adapter.process != getpid()) return;
  Refusal refusal{filter.refuses(kRecordingCalls), true};
  if (!refusal) refusal.call = filter.refuses(kWaitingCalls);
  if (!refusal && !began) refusal.call = filter.refuses(kBeginningCalls);
  if (!refusal) return;
  if (!began) refusal.leave_word();
  pthread_mutex_lock(&g_withdrawing);
  g_refusal = {refusal.call, !began && filter.allows_saying()};
  withdraw(refusal, filter.allows(kYield));
  pthread_mutex_unlock(&g_withdrawing);
}
