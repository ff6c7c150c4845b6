// SPDX-License-Identifier: Apache-2.0
// MPI_X and PMPI_X of every function that can block: look up, guard, delegate. The PMPI_ names are here as well,
// because Open MPI's Fortran bindings call those; whichever comes first is the call, what it calls in turn passes
// through.
#include <stdio.h>
#include <unistd.h>

#include <utility>

#include "doors/mpi/door.h"
#include "doors/mpi/narrow.h"
#include "runtime/log.h"

using namespace powerccl;
using namespace powerccl::mpi;

namespace {

enum Form { kPlain, kProfiling, kLarge, kLargeProfiling, kForms };

std::atomic<void*> g_next[kFunctions][kForms];
char g_absent;  // what the library does not have: looked for once

__attribute__((noinline, cold)) void* find_next(Function function, Form form) {
  char name[64];
  snprintf(name, sizeof(name), "%sMPI_%s%s", form == kProfiling || form == kLargeProfiling ? "P" : "",
           kSignatures[function].name, form >= kLarge ? "_c" : "");
  void* next = next_symbol(name);
  // A program may ask whether the library has the form with large counts by a weak reference, and has found ours.
  if (next == nullptr && form >= kLarge) next = &g_absent;
  if (next == nullptr) {
    // Without this library the program would not have been linked to the end either.
    say("the program was built for another MPI library than the one that was loaded", "%s is not in the MPI library",
        name);
    _exit(127);
  }
  g_next[function][form].store(next, std::memory_order_release);
  return next;
}

template <Function kFunction, Form kForm, class... Words>
Word forward(Words... words);

// The library lacks the form with large counts: its plain one does, as long as the counts are no larger.
template <Function kFunction, Form kForm, size_t... kPlaces>
__attribute__((noinline, cold)) Word in_plain_form(Word* arguments, std::index_sequence<kPlaces...>) {
  constexpr Form kPlainForm = kForm == kLarge ? kPlain : kProfiling;
  Narrowed narrowed;
  const int error = narrowed.narrow(kFunction, arguments);
  return error != 0 ? error : forward<kFunction, kPlainForm>(arguments[kPlaces]...);
}

template <Function kFunction, Form kForm, class... Words>
inline Word forward(Words... words) {
  constexpr Kind kKind = kSignatures[kFunction].kind;
  using Next = Word (*)(Words...);
  void* found = g_next[kFunction][kForm].load(std::memory_order_acquire);
  if (__builtin_expect(found == nullptr, 0)) found = find_next(kFunction, kForm);
  if constexpr (kForm >= kLarge) {
    if (__builtin_expect(found == &g_absent, 0)) {
      Word arguments[] = {words...};
      return in_plain_form<kFunction, kForm>(arguments, std::make_index_sequence<sizeof...(Words)>());
    }
  }
  const Next next = reinterpret_cast<Next>(found);
  if constexpr (kKind == Kind::INIT) {
    static __thread int depth __attribute__((tls_model("initial-exec")));
    if (depth++ == 0) before_init();
    const Word result = next(words...);
    if (--depth == 0) after_init(result);
    return result;
  } else {
    ThreadState* thread = this_thread();
    if (thread == nullptr || thread->inside) return next(words...);
    if constexpr (kKind == Kind::FINALIZE) before_finalize(kFunction == kFinalize);
    const Word arguments[sizeof...(Words) + 1] = {words...};
    thread->inside = true;
    thread->start = ticks();
    thread->waiter.begin();
    thread->rounds.begin();
    thread->visits = 0;
    uint32_t freed = Communicators::kUnknown;
    if constexpr (kKind == Kind::COMM_FREE || kKind == Kind::TYPE_FREE) {
      freed = before_free(thread, kFunction, arguments);
    }
    Word result = 0;
    if (__builtin_expect(g_door.settings.mode != MpiMode::kPublished, 1) ||
        !carried_out(thread, kFunction, kForm >= kLarge, arguments, &result)) {
      result = next(words...);
    }
    thread->waiter.end(g_door.plan);
    if constexpr (kKind != Kind::FINALIZE) {
      account(thread, kFunction, kForm >= kLarge, arguments, result, freed);
    }
    thread->inside = false;
    return result;
  }
}

}  // namespace

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
#include "wire/mpi_functions.def"
