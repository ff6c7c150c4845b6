// SPDX-License-Identifier: Apache-2.0
// The MPI adapter's state: one a process, and one a thread that makes blocking calls.
//
// A blocking call: entry.cpp finds the thread, notes the time, and calls the library. With `published`, it waits by
// request first. Then it has the call accounted for. While the call is inside, the library's idle loop reaches
// hooks.cpp, which waits.
// Outside of a blocking call this adapter never waits, so sched_yield() keeps its meaning for all other callers.
#pragma once
#include <stdint.h>

#include <atomic>

#include "adapters/mpi/call_accounts.h"
#include "adapters/mpi/communicators.h"
#include "adapters/mpi/library.h"
#include "adapters/mpi/rounds.h"
#include "adapters/mpi/ticks.h"
#include "adapters/mpi/waiter.h"
#include "base/environment.h"
#include "record/trace_writer.h"

namespace powerccl::mpi {

struct ThreadState {
  static constexpr uint32_t kCached = 64;  // handles; a miss costs a lock
  struct CachedCommunicator {
    Word handle = 0;
    uint32_t generation = 0;  // 0: empty
    CommunicatorKnown known;
  };
  struct CachedType {
    Word handle = 0;
    uint32_t generation = 0;
    uint32_t bytes = 0;
  };

  ThreadState* next_free = nullptr;
  bool inside = false;      // a blocking call of this thread is under way
  bool by_request = false;  // the adapter polls a request: no waiting in the library's idle loop
  Rounds rounds;
  uint32_t visits = 0;  // of the idle loop, in this call
  uint32_t polls = 0;   // idle ones, of the application's own
  uint16_t index = 0;
  uint64_t start = 0;  // ticks, of the call
  uint64_t flushed = 0;
  Waiter waiter;
  CallAccounts accounts;
  CachedCommunicator communicators[kCached];
  CachedType types[kCached];

  // A blocking call begins, or has ended.
  void begin(uint64_t now) {
    inside = true;
    start = now;
    waiter.begin();
    rounds.begin();
    visits = 0;
  }
  void end(const WaitPlan& plan);
};

// The states of all threads that have made blocking calls, as many as there were at a time. A state outlives its
// thread, and the next thread that comes goes on with its sums.
class ThreadStates {
 public:
  // The trace has 16 bits for a thread. Half a chunk would map twice as often, 1 MiB at a time. A chunk of twice the
  // size would take 4 MiB for a process with one thread.
  static constexpr uint32_t kMost = 65536, kInChunk = 64;

  // A state for the calling thread; null: there is no memory, or `kMost` threads have one.
  ThreadState* take();
  void give_back(ThreadState* thread);
  // How many were ever in use at a time. States below this number never go away.
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  ThreadState& operator[](uint32_t index) const {
    return chunks_[index / kInChunk].load(std::memory_order_acquire)[index % kInChunk];
  }

 private:
  SpinLock lock_;
  ThreadState* free_ = nullptr;
  std::atomic<uint32_t> count_{0};
  std::atomic<ThreadState*> chunks_[kMost / kInChunk] = {};
};

struct ProcessState {
  std::atomic<bool> armed{false};
  // A filter of the job refuses system calls that are made here. Then nothing of ours waits, counts or records.
  std::atomic<bool> withdrawn{false};
  pid_t process = 0;  // in which it was armed
  Environment environment;
  MpiEnvironment settings;
  Library library;
  TickClock clock;
  WaitPlan plan;
  char waits[sizeof(WaitChoice::text)] = "";  // how, for people
  TraceWriter trace;
  Communicators communicators;
  std::atomic<uint32_t> type_generation{1};
  uint64_t flush_ticks = 0;                  // how often a thread writes its sums
  uint64_t long_call_ticks = 0;              // calls longer than this are recorded one by one
  std::atomic<uint64_t> long_calls_left{0};  // of the trace's room for them
  bool published_collectives = false;
  ThreadStates threads;
  std::atomic<uint64_t> uncounted_calls{0};  // of threads that have no state
};

extern constinit ProcessState g_adapter;

inline void ThreadState::end(const WaitPlan& plan) {
  waiter.end(plan);
  inside = g_adapter.withdrawn.load(std::memory_order_relaxed);
}
extern constinit __thread ThreadState* t_thread __attribute__((tls_model("initial-exec")));

// adapter.cpp
// Called before and after the library's own initialisation; `result` is its MPI error code.
void before_init();
void after_init(Word result);
// `world`: MPI_COMM_WORLD goes.
void before_finalize(bool world);
void after_finalize(Word result);
// Writes the sums of all threads into the trace.
void record_sums();
bool mpi_is_up();
// Addresses in the library and in what it is built on are looked up again at their next use.
void forget_functions();
// This thread's state, given out at its first blocking call; null: MPI is not up, or there is no memory.
ThreadState* adopt_thread();
inline ThreadState* this_thread() {
  ThreadState* thread = t_thread;
  return __builtin_expect(thread != nullptr, 1) ? thread : adopt_thread();
}

// entry.cpp, hooks.cpp, published.cpp and arguments.cpp: each one's part of forget_functions().
void forget_next();
void forget_hooks();
void forget_requests();
void forget_trials();

// accounting.cpp
// The call has returned: adds it to the thread's sums. `large`: counts are MPI_Count.
void account(ThreadState* thread, Function function, bool large, const Word* arguments, Word result, uint32_t freed);
// The index of the communicator that is about to be freed; after it, its handle means nothing.
uint32_t before_free(ThreadState* thread, Function function, const Word* arguments);
CommunicatorKnown communicator_of(ThreadState* thread, Word handle);
uint64_t size_of_type(ThreadState* thread, Word type);
void flush(ThreadState* thread, uint64_t now_ticks);

// refused.cpp: a filter that came before MPI was up refuses calls of ours.
bool is_refused();

// published.cpp: receives, sends and waits by request, and a barrier request in front of collectives. True: the call
// was carried out, with `result`; false: make the call itself.
bool carried_out(ThreadState* thread, Function function, bool large, const Word* arguments, Word* result);
void register_member();
// Whether every rank of the world has this library in the same mode: all on this host, their marks seen.
bool all_members_here(const Library& library);

// arguments.cpp
// Whether the library refuses this collective for what this rank passes. Between open_trials() and close_trials().
bool is_refused(ThreadState* thread, Function function, bool large, const Word* arguments,
                const CommunicatorKnown& communicator);
void open_trials();
void close_trials();

}  // namespace powerccl::mpi
