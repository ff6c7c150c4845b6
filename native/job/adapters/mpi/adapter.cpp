// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/adapter.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <new>

#include "base/log.h"
#include "libc/fork.h"
#include "record/records.h"
#include "record/trace_writer.h"

namespace powerccl::mpi {

ProcessState g_adapter;
__thread ThreadState* t_thread __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// How often a thread writes its sums. A killed process loses what came since; half of it doubles the trace.
constexpr uint64_t kFlushNs = 1000000000;
// Calls from here on are recorded one by one. Half of it records waits that are mere polling (kSpinUs in waiter.cpp);
// double of it hides waits in which a rank already sleeps.
constexpr uint64_t kLongCallNs = 200000;
// Polls between two pauses. Open MPI looks at its sockets every eighth time, the others look at everything each time,
// or every second time. Half might leave one out; each poll more is 1 us of every pause (Intel MPI).
constexpr uint32_t kPollsOfOpenMpi = 16, kPollsOfOthers = 4;

pthread_key_t g_thread_key;
pthread_mutex_t g_arming = PTHREAD_MUTEX_INITIALIZER;
// MPI_Init, or sessions, that have not been ended yet.
std::atomic<uint32_t> g_times_up{0};

uint64_t ns_of(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_usec) * 1000u;
}

// The next thread that comes takes its place, and goes on with its sums.
void thread_ends(void* data) {
  ThreadState* thread = static_cast<ThreadState*>(data);
  t_thread = nullptr;
  if (!g_adapter.armed.load(std::memory_order_acquire)) return;  // a forked child: all of it is its parent's
  flush(thread, ticks());
  g_adapter.threads.give_back(thread);
}

void record_process() {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return;
  powerccl_trace_record record = new_record(POWERCCL_REC_PROCESS);
  auto& process = record.process;
  process.time_ns = monotonic_ns();
  process.user_ns = ns_of(usage.ru_utime);
  process.system_ns = ns_of(usage.ru_stime);
  process.threads = g_adapter.threads.count();
  process.thread_level = static_cast<uint32_t>(g_adapter.library.thread_level);
  for (uint32_t i = 0; i < process.threads; ++i) {
    const Waiter& waiter = g_adapter.threads[i].waiter;
    process.sleeps += waiter.sleeps;
    process.sleep_ns += g_adapter.clock.length_ns(waiter.slept_ticks);
    process.asked_ns += g_adapter.clock.length_ns(waiter.asked_ticks);
  }
  g_adapter.trace.append(record);
}

void open_trace() {
  const Environment& environment = g_adapter.environment;
  if (environment.run_folder[0] == '\0') return;
  const Library& library = g_adapter.library;
  int rank = environment.rank, size = 0;
  // A program of sessions alone has no world communicator: its rank and size come from the launcher, or stay unknown.
  if (!library.world_is_up.load(std::memory_order_relaxed) || library.comm_rank(library.comm_world, &rank) != 0 ||
      library.comm_size(library.comm_world, &size) != 0) {
    rank = environment.rank < 0 ? 0 : environment.rank;
    size = 0;
  }
  powerccl_trace_header header = {};
  header.flags = POWERCCL_HEADER_FLAG_DRY;
  header.rank = rank;
  header.nranks = size;
  header.local_rank = environment.local_rank;
  header.pid = static_cast<uint32_t>(getpid());
  header.start_ns = monotonic_ns();
  header.start_realtime_ns = clock_ns(CLOCK_REALTIME);
  gethostname(header.host, sizeof(header.host) - 1);
  copy_text(header.policy, sizeof(header.policy), "observe");
  copy_text(header.clock_client, sizeof(header.clock_client), text_of(g_adapter.settings.mode));
  copy_text(header.library, sizeof(header.library), g_adapter.library.name);
  identify(environment, &header);
  char path[PATH_MAX + 64];
  const int error = open_named_trace(&g_adapter.trace, environment.record_folder, "mpi", true, header,
                                     environment.trace_limit_bytes, path, sizeof(path));
  if (error == 0) {
    // Half of the room is kept for the sums, which tell everything but when.
    g_adapter.long_calls_left.store(environment.trace_limit_bytes / POWERCCL_TRACE_RECORD_BYTES / 2,
                                    std::memory_order_relaxed);
    g_adapter.trace.note(g_adapter.waits);
    return;
  }
  char reason[64];
  say(trace_hint(error), "cannot create the trace %s (%s); MPI rank %d sleeps in waits as usual, but is not recorded",
      path, error_text(error, reason, sizeof(reason)), rank);
}

// Open MPI calls this in every progress loop; only idle ones yield. More than one between two yields: something moved.
int progress_looped() {
  ThreadState* thread = t_thread;
  if (thread != nullptr) thread->rounds.round(1);
  return 0;
}

void wire_open_mpi() {
  using Register = int (*)(int (*)());
  using SetYield = void (*)(bool);
  auto set_yield = reinterpret_cast<SetYield>(next_symbol("opal_progress_set_yield_when_idle"));
  auto add = reinterpret_cast<Register>(next_symbol("opal_progress_register"));
  if (set_yield != nullptr) set_yield(true);
  if (add != nullptr) add(progress_looped);
}

void forked_child() {
  if (!g_adapter.armed.exchange(false, std::memory_order_acq_rel)) return;
  t_thread = nullptr;
  g_adapter.trace.close();
}

// What depends on the library itself. Another one may be loaded, or the same at other addresses, each time that MPI
// comes up. False: this library cannot be worked with.
bool meet_library() {
  Library& library = g_adapter.library;
  const bool known = identify(&library);
  g_adapter.communicators.forget_handles();
  g_adapter.type_generation.fetch_add(1, std::memory_order_acq_rel);
  if (!known) {
    if (g_adapter.environment.speaks()) {
      say("nothing is recorded or changed in this job; use a library that has the MPI profiling interface",
          "this MPI library lacks PMPI_ functions");
    }
    return false;
  }
  const MpiEnvironment& settings = g_adapter.settings;
  g_adapter.plan.polls_apart = library.open_mpi ? kPollsOfOpenMpi : kPollsOfOthers;
  if (library.hook == Hook::kNone && settings.mode == MpiMode::kAuto && g_adapter.environment.speaks()) {
    say("try `powerccl run --mpi published`", "%s has no known place to sleep: its waiting ranks keep spinning",
        library.name);
  }
  if (library.open_mpi && settings.mode != MpiMode::kPublished) wire_open_mpi();
  return true;
}

// Once a process, everything that needs no MPI_COMM_WORLD. False: this library cannot be worked with.
bool arm() {
  const MpiEnvironment& settings = g_adapter.settings;
  g_adapter.clock.begin();
  const WaitTable table = machine_wait_table(g_adapter.clock);
  const WaitChoice choice = choose_wait_method(table, settings.method);
  g_adapter.plan = make_wait_plan(table, choice, settings.budget_percent, settings.mode != MpiMode::kObserve);
  if (!meet_library()) return false;
  g_adapter.flush_ticks = g_adapter.clock.from_ns(kFlushNs);
  g_adapter.long_call_ticks = g_adapter.clock.from_ns(kLongCallNs);
  copy_text(g_adapter.waits, sizeof(g_adapter.waits), choice.text);
  pthread_key_create(&g_thread_key, thread_ends);
  call_in_forked_child(forked_child);
  if (g_adapter.environment.debug >= 1 && g_adapter.environment.speaks()) {
    say(nullptr, "%s: waits %s, %s", g_adapter.library.name, text_of(settings.mode), choice.text);
  }
  return true;
}

// MPI_COMM_WORLD has come up: whether its ranks put barriers in front of collectives.
void agree() {
  const MpiEnvironment& settings = g_adapter.settings;
  if (settings.mode != MpiMode::kPublished || settings.collectives == MpiCollectives::kNone) return;
  g_adapter.published_collectives = settings.collectives == MpiCollectives::kAll || all_members_here(g_adapter.library);
  if (g_adapter.published_collectives) open_trials();
  int rank = 0;
  g_adapter.library.comm_rank(g_adapter.library.comm_world, &rank);
  if (!g_adapter.published_collectives && rank == 0) {
    say("receives, sends and waits still sleep; set POWERCCL_MPI_COLLECTIVES=all if every rank of "
        "every host has this library",
        "no barrier is added before collectives: some MPI ranks may lack this library");
  }
}

}  // namespace

void before_init() {
  pthread_mutex_lock(&g_arming);
  read_environment(&g_adapter.environment);
  if (!g_adapter.environment.disabled) read_mpi_environment(&g_adapter.settings);
  if (g_adapter.environment.disabled || is_refused()) g_adapter.settings.mode = MpiMode::kOff;
  if (g_adapter.settings.mode == MpiMode::kPublished) register_member();
  pthread_mutex_unlock(&g_arming);
}

void after_init(Word result) {
  if (static_cast<int32_t>(result) != 0) return;
  pthread_mutex_lock(&g_arming);
  g_times_up.fetch_add(1, std::memory_order_acq_rel);
  if (g_adapter.settings.mode != MpiMode::kOff) {
    const bool armed = g_adapter.armed.load(std::memory_order_relaxed);
    const bool met = !armed ? arm() : is_present(g_adapter.library) || meet_library();
    if (met && world_comes_up(&g_adapter.library)) agree();
    if (met && !armed) {
      g_adapter.process = getpid();
      open_trace();
      g_adapter.armed.store(true, std::memory_order_release);
    }
  }
  pthread_mutex_unlock(&g_arming);
}

bool mpi_is_up() {
  if (g_times_up.load(std::memory_order_acquire) != 0) return true;
  // It may have been started in a way that does not lead through this library.
  auto* const initialized = reinterpret_cast<int (*)(int*)>(next_symbol("PMPI_Initialized"));
  auto* const finalized = reinterpret_cast<int (*)(int*)>(next_symbol("PMPI_Finalized"));
  int begun = 0, ended = 0;
  return initialized != nullptr && finalized != nullptr && initialized(&begun) == 0 && finalized(&ended) == 0 &&
         begun != 0 && ended == 0;
}

void forget_functions() {
  forget_next();
  forget_hooks();
  forget_requests();
  forget_trials();
}

ThreadState* adopt_thread() {
  if (!g_adapter.armed.load(std::memory_order_acquire)) return nullptr;
  ThreadState* thread = g_adapter.threads.take();
  if (thread == nullptr) {
    if (g_adapter.uncounted_calls.fetch_add(1, std::memory_order_relaxed) == 0) {
      g_adapter.trace.note("MPI counts are minimums: no memory for threads");
    }
    return nullptr;
  }
  thread->inside = thread->by_request = false;
  thread->flushed = ticks();
  pthread_setspecific(g_thread_key, thread);
  t_thread = thread;
  return thread;
}

void flush(ThreadState* thread, uint64_t now_ticks) {
  thread->flushed = now_ticks;
  if (!g_adapter.trace.is_open() || g_adapter.withdrawn.load(std::memory_order_relaxed)) return;
  if (thread->index == 0) {
    g_adapter.clock.calibrate();
    record_process();
  }
  thread->accounts.flush(g_adapter.trace, g_adapter.clock, thread->index, monotonic_ns());
}

void record_sums() {
  g_adapter.clock.calibrate();
  if (!g_adapter.trace.is_open()) return;
  record_process();
  uint64_t left_out = g_adapter.uncounted_calls.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < g_adapter.threads.count(); ++i) {
    ThreadState& thread = g_adapter.threads[i];
    thread.accounts.flush(g_adapter.trace, g_adapter.clock, thread.index, monotonic_ns());
    left_out += thread.accounts.left_out();
  }
  if (left_out > 0) {
    char text[48];
    const uint64_t shown = left_out < 999999999u ? left_out : 999999999u;
    snprintf(text, sizeof(text), "%u MPI calls left out", static_cast<unsigned>(shown));
    g_adapter.trace.note(text);
  }
}

void before_finalize(bool world) {
  if (!g_adapter.armed.load(std::memory_order_acquire)) return;
  if (world) {
    close_trials();
    g_adapter.library.world_is_up.store(false, std::memory_order_release);
  }
  record_sums();
  g_adapter.trace.flush();
}

void after_finalize(Word result) {
  if (static_cast<int32_t>(result) != 0) return;
  pthread_mutex_lock(&g_arming);
  uint32_t times = g_times_up.load(std::memory_order_relaxed);
  if (times > 0) g_times_up.store(--times, std::memory_order_release);
  // From here on the library may be unloaded.
  if (times == 0) {
    forget_functions();
    forget(&g_adapter.library);
  }
  pthread_mutex_unlock(&g_arming);
}

// A job that ends without MPI_Finalize (exit, MPI_Abort) leaves its last sums all the same.
__attribute__((destructor)) static void library_ends() {
  if (g_adapter.withdrawn.load(std::memory_order_relaxed)) return;
  before_finalize(false);
  g_adapter.trace.flush();
}

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
