// SPDX-License-Identifier: Apache-2.0
// MPI_X and PMPI_X of every function that can block: look up, guard, delegate. The PMPI_ names are here as well,
// because Open MPI's Fortran bindings call those. The first of the two that is called counts as the call, and nested
// calls pass through.
#include <stdio.h>

#include "adapters/mpi/adapter.h"
#include "adapters/names.h"

using namespace powerccl;
using namespace powerccl::mpi;

namespace {

enum Form { kPlain, kProfiling, kLarge, kLargeProfiling, kForms };

// Valid while the library stays loaded. A module with MPI may be unloaded, and another loaded, while MPI is down.
std::atomic<void*> g_next[kFunctions][kForms];

// How deep this thread is in functions that start or end MPI: libraries call some of them by other ones.
__thread int t_depth __attribute__((tls_model("initial-exec"))) = 0;

__attribute__((noinline, cold)) void* find_next(Function function, Form form, const void* caller) {
  char name[64];
  snprintf(name, sizeof(name), "%sMPI_%s%s", form == kProfiling || form == kLargeProfiling ? "P" : "",
           kSignatures[function].name, form >= kLarge ? "_c" : "");
  void* next = next_symbol(name);
  if (next == nullptr) names::end_as_undefined(name, caller);
  // The library cannot be unloaded before MPI is down again.
  if (mpi_is_up()) g_next[function][form].store(next, std::memory_order_release);
  return next;
}

template <Function kFunction, Form kForm, class... Words>
__attribute__((always_inline)) inline Word forward(Words... words) {
  constexpr Kind kKind = kSignatures[kFunction].kind;
  using Next = Word (*)(Words...);
  void* function = g_next[kFunction][kForm].load(std::memory_order_acquire);
  if (__builtin_expect(function == nullptr, 0)) function = find_next(kFunction, kForm, __builtin_return_address(0));
  const Next next = reinterpret_cast<Next>(function);
  if constexpr (kKind == Kind::INIT || kKind == Kind::FINALIZE) {
    ThreadState* thread = kKind == Kind::FINALIZE ? this_thread() : nullptr;
    if (t_depth != 0 || (thread != nullptr && thread->inside)) return next(words...);
    ++t_depth;
    if constexpr (kKind == Kind::INIT) before_init();
    if constexpr (kKind == Kind::FINALIZE) before_finalize(kFunction == kFinalize);
    if (thread != nullptr) thread->begin(ticks());
    const Word result = next(words...);
    if (thread != nullptr) thread->end(g_adapter.plan);
    if constexpr (kKind == Kind::INIT) after_init(result);
    if constexpr (kKind == Kind::FINALIZE) after_finalize(result);
    --t_depth;
    return result;
  } else {
    ThreadState* thread = this_thread();
    if (thread == nullptr || thread->inside) return next(words...);
    const Word arguments[sizeof...(Words) + 1] = {words...};
    thread->begin(ticks());
    uint32_t freed = Communicators::kUnknown;
    if constexpr (kKind == Kind::COMM_FREE || kKind == Kind::TYPE_FREE) {
      freed = before_free(thread, kFunction, arguments);
    }
    Word result = 0;
    if (__builtin_expect(g_adapter.settings.mode != MpiMode::kPublished, 1) ||
        !carried_out(thread, kFunction, kForm >= kLarge, arguments, &result)) {
      result = next(words...);
    }
    // Not end(): what account() asks of the library must pass through these functions as part of the call.
    thread->waiter.end(g_adapter.plan);
    account(thread, kFunction, kForm >= kLarge, arguments, result, freed);
    // Then every later call passes through.
    thread->inside = g_adapter.withdrawn.load(std::memory_order_relaxed);
    return result;
  }
}

}  // namespace

void powerccl::mpi::forget_next() {
  for (auto& forms : g_next) {
    for (auto& next : forms) next.store(nullptr, std::memory_order_release);
  }
}

void powerccl::names::objects_were_unloaded() {
  forget_functions();
}

#define POWERCCL_WORDS_0
#define POWERCCL_WORDS_1 Word a
#define POWERCCL_WORDS_2 POWERCCL_WORDS_1, Word b
#define POWERCCL_WORDS_3 POWERCCL_WORDS_2, Word c
#define POWERCCL_WORDS_4 POWERCCL_WORDS_3, Word d
#define POWERCCL_WORDS_5 POWERCCL_WORDS_4, Word e
#define POWERCCL_WORDS_6 POWERCCL_WORDS_5, Word f
#define POWERCCL_WORDS_7 POWERCCL_WORDS_6, Word g
#define POWERCCL_WORDS_8 POWERCCL_WORDS_7, Word h
#define POWERCCL_WORDS_9 POWERCCL_WORDS_8, Word i
#define POWERCCL_WORDS_10 POWERCCL_WORDS_9, Word j
#define POWERCCL_WORDS_12 POWERCCL_WORDS_10, Word k, Word l
#define POWERCCL_NAMES_0
#define POWERCCL_NAMES_1 a
#define POWERCCL_NAMES_2 POWERCCL_NAMES_1, b
#define POWERCCL_NAMES_3 POWERCCL_NAMES_2, c
#define POWERCCL_NAMES_4 POWERCCL_NAMES_3, d
#define POWERCCL_NAMES_5 POWERCCL_NAMES_4, e
#define POWERCCL_NAMES_6 POWERCCL_NAMES_5, f
#define POWERCCL_NAMES_7 POWERCCL_NAMES_6, g
#define POWERCCL_NAMES_8 POWERCCL_NAMES_7, h
#define POWERCCL_NAMES_9 POWERCCL_NAMES_8, i
#define POWERCCL_NAMES_10 POWERCCL_NAMES_9, j
#define POWERCCL_NAMES_12 POWERCCL_NAMES_10, k, l

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))
#define POWERCCL_FORWARD(symbol, function, form, arity)     \
  POWERCCL_EXPORT Word symbol(POWERCCL_WORDS_##arity) {     \
    return forward<function, form>(POWERCCL_NAMES_##arity); \
  }

#define POWERCCL_MPI(name, arity, kind, count, type, comm, peer) \
  POWERCCL_FORWARD(MPI_##name, k##name, kPlain, arity)           \
  POWERCCL_FORWARD(PMPI_##name, k##name, kProfiling, arity)
#define POWERCCL_MPI_C(name, arity, kind, count, type, comm, peer) \
  POWERCCL_MPI(name, arity, kind, count, type, comm, peer)         \
  POWERCCL_FORWARD(MPI_##name##_c, k##name, kLarge, arity)         \
  POWERCCL_FORWARD(PMPI_##name##_c, k##name, kLargeProfiling, arity)
#include "abi/mpi_functions.def"
