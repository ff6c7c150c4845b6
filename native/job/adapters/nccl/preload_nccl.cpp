// SPDX-License-Identifier: Apache-2.0
// Interposed functions of NCCL: look up, guard, delegate. NCCL calls some of its own through the same names;
// what comes from inside passes straight through.
#include "adapters/names.h"
#include "adapters/nccl/api_calls.h"
#include "adapters/nccl/originals.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

// By the linker: the list that POWERCCL_ORIGINAL makes.
extern "C" powerccl::nccl::Original* const __start_powerccl_originals[] __attribute__((visibility("hidden")));
extern "C" powerccl::nccl::Original* const __stop_powerccl_originals[] __attribute__((visibility("hidden")));

namespace powerccl::nccl {
namespace {

std::atomic<bool> g_found_ahead{false};

void find_ahead() {
  if (g_found_ahead.exchange(true, std::memory_order_relaxed)) return;
  for (auto* each = __start_powerccl_originals; each != __stop_powerccl_originals; ++each) (*each)->find_ahead();
}

template <typename Real>
int from_inside(const Real& real) {
  const Inside inside;
  return real();
}

// What is ours before and after NCCL's part: unseen, and without a trace in errno.
template <typename Ours>
void do_own_work(const Ours& does) {
  const AtOwnWork counted(OwnWork::kCalls);
  does();
}

template <typename Real>
int around_call(const ApiCall& call, const Real& real) {
  const bool alone = t_thread.group_depth == 0;
  do_own_work([&] {
    if (alone) forget_calls();
    call_made(call);
    if (alone) launch_begins();
  });
  if (alone) t_thread.comm = call.comm;
  const int result = from_inside(real);
  t_thread.comm = nullptr;
  if (alone) do_own_work([&] { launch_ended(result); });
  return result;
}

template <typename Real>
int around_coming(void** slot, uint64_t id, const Real& real) {
  do_own_work([&] {
    find_ahead();
    communicator_coming(slot, id);
  });
  const int result = from_inside(real);
  if (t_thread.group_depth == 0) do_own_work([&] { communicators_came(result); });
  return result;
}

struct Others {
#define POWERCCL_OTHER(name, ...) \
  template <typename Real>        \
  static int name(const Real& real __VA_OPT__(, ) __VA_ARGS__)

  POWERCCL_OTHER(ncclGroupStart) {
    if (t_thread.group_depth++ == 0) do_own_work(forget_calls);
    return from_inside(real);
  }
  POWERCCL_OTHER(ncclGroupEnd) {
    if (t_thread.group_depth == 0) return from_inside(real);
    const bool outermost = --t_thread.group_depth == 0;
    if (outermost) do_own_work(launch_begins);
    const int result = from_inside(real);
    if (outermost) {
      do_own_work([&] {
        communicators_came(result);
        launch_ended(result);
      });
    }
    return result;
  }
  POWERCCL_OTHER(ncclGroupSimulateEnd, void*) {
    if (t_thread.group_depth > 0) --t_thread.group_depth;
    if (t_thread.group_depth == 0) do_own_work([] { launch_ended(kNcclInvalidUsage); });
    return from_inside(real);
  }
  POWERCCL_OTHER(ncclCommInitRank, void** comm, int, const UniqueId& id, int) {
    return around_coming(comm, id_of(id), real);
  }
  POWERCCL_OTHER(ncclCommInitRankConfig, void** comm, int, const UniqueId& id, int, void*) {
    return around_coming(comm, id_of(id), real);
  }
  POWERCCL_OTHER(ncclCommInitRankScalable, void** comm, int, int, int ids, const UniqueId* id, void*) {
    return around_coming(comm, ids > 0 && id != nullptr ? id_of(*id) : 0, real);
  }
  POWERCCL_OTHER(ncclCommInitAll, void** comm, int devices, const int*) {
    const uint64_t id = id_of_all();
    do_own_work([&] {
      find_ahead();
      for (int i = 0; comm != nullptr && i < devices; ++i) communicator_coming(comm + i, id);
    });
    const int result = from_inside(real);
    if (t_thread.group_depth == 0) do_own_work([&] { communicators_came(result); });
    return result;
  }
  POWERCCL_OTHER(ncclCommSplit, void* parent, int color, int, void** comm, void*) {
    return around_coming(comm, id_of_split(parent, color), real);
  }
  POWERCCL_OTHER(ncclCommShrink, void* parent, int* ranks, int count, void** comm, void*, int flags) {
    if ((flags & kShrinkAborts) != 0) do_own_work([&] { communicator_given_up(parent); });
    return around_coming(comm, id_without(parent, ranks, count), real);
  }
  // New ranks have no parent to know it by, so theirs is of another name; NCCLs that can grow tell a plugin.
  POWERCCL_OTHER(ncclCommGrow, void* parent, int ranks, const UniqueId* id, int, void** comm, void*) {
    return around_coming(comm, parent != nullptr || id == nullptr ? id_of_split(parent, ranks) : id_of(*id), real);
  }
  POWERCCL_OTHER(ncclCommSuspend, void* comm, int) {
    do_own_work([&] { communicator_given_up(comm); });
    return from_inside(real);
  }
  POWERCCL_OTHER(ncclCommRevoke, void* comm, int) {
    do_own_work([&] { communicator_given_up(comm); });
    return from_inside(real);
  }
  POWERCCL_OTHER(ncclCommFinalize, void*) { return from_inside(real); }
  POWERCCL_OTHER(ncclCommDestroy, void* comm) {
    Communicator* const communicator = communicator_taken(comm);
    const int result = from_inside(real);
    do_own_work([&] { communicator_gone(communicator); });
    return result;
  }
  // What is aborted may never end: its clock is given back first.
  POWERCCL_OTHER(ncclCommAbort, void* comm) {
    do_own_work([&] { communicator_gone(communicator_taken(comm)); });
    return from_inside(real);
  }
};

}  // namespace
}  // namespace powerccl::nccl

using namespace powerccl::nccl;

void powerccl::names::objects_were_unloaded() {
  for (auto* each = __start_powerccl_originals; each != __stop_powerccl_originals; ++each) (*each)->forget();
  g_found_ahead.store(false, std::memory_order_relaxed);
}

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))
// NOLINTBEGIN(bugprone-macro-parentheses): parameter lists and argument lists come with theirs
#define POWERCCL_REAL(name, parameters)                                                               \
  POWERCCL_ORIGINAL(name, Library::kNccl);                                                            \
  auto* const real = reinterpret_cast<int(*) parameters>(original.find(__builtin_return_address(0))); \
  if (real == nullptr) return kNcclInvalidUsage

#define POWERCCL_NCCL_COLLECTIVE(name, pattern, parameters, arguments, root_)                                      \
  POWERCCL_EXPORT int name parameters {                                                                            \
    POWERCCL_REAL(name, parameters);                                                                               \
    if (t_thread.inside) return real arguments;                                                                    \
    return around_call({comm, stream, pattern, false, false, type, root_, count}, [&] { return real arguments; }); \
  }

#define POWERCCL_NCCL_ONE_SIDED(name, is_send, peer_, type_, count_, parameters, arguments)       \
  POWERCCL_EXPORT int name parameters {                                                           \
    POWERCCL_REAL(name, parameters);                                                              \
    if (t_thread.inside) return real arguments;                                                   \
    ApiCall call = {comm, stream, POWERCCL_PATTERN_UNKNOWN, true, is_send, type_, peer_, count_}; \
    call.one_sided = true;                                                                        \
    return around_call(call, [&] { return real arguments; });                                     \
  }

#define POWERCCL_NCCL_EXCHANGE(name, is_send, parameters, arguments)                             \
  POWERCCL_EXPORT int name parameters {                                                          \
    POWERCCL_REAL(name, parameters);                                                             \
    if (t_thread.inside) return real arguments;                                                  \
    return around_call({comm, stream, POWERCCL_PATTERN_UNKNOWN, true, is_send, type, -1, count}, \
                       [&] { return real arguments; });                                          \
  }

#define POWERCCL_UNPACK(...) __VA_OPT__(, ) __VA_ARGS__
#define POWERCCL_NCCL_OTHER(name, parameters, arguments)                           \
  POWERCCL_EXPORT int name parameters {                                            \
    POWERCCL_REAL(name, parameters);                                               \
    if (t_thread.inside) return real arguments;                                    \
    return Others::name([&] { return real arguments; } POWERCCL_UNPACK arguments); \
  }

// NOLINTEND(bugprone-macro-parentheses)

#include "adapters/nccl/preload_functions.def"
