// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/chained_profiler.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "adapters/nccl/chained_plugin.h"
#include "adapters/nccl/thread.h"
#include "base/environment.h"
#include "base/log.h"

namespace powerccl::nccl {
namespace {

constexpr int kOldest = 4, kNewest = 7;

// The other plugin, while communicators have it. Under g_chain_mutex but for what calls read.
struct Chain {
  std::atomic<const ProfilerV5*> table{nullptr};  // of v4, only what both have is used
  std::atomic<int> version{0};
  std::atomic<int> word{0};  // the mask that the plugin writes, whenever it likes
  std::atomic<int> seen{0};  // what was made of it last
  void* library = nullptr;
  uint32_t communicators = 0;
  bool failed = false;  // final, as in NCCL
};
constinit Chain g_chain;
std::atomic<int> g_pid{0};
constinit pthread_mutex_t g_chain_mutex = PTHREAD_MUTEX_INITIALIZER;

constexpr uint32_t kCommunicators = Runtime::kCommunicators;
constinit Both g_both[kCommunicators];

// Pairs of handles. NCCL never says that an event is over, so new pairs replace the oldest ones. There is room for
// calls of 13,000 collectives that the GPU has yet to begin. Channels, which come and go while a kernel runs, have
// pairs of their own, so that they do not replace calls.
struct Pair {
  std::atomic<Handle> name{0}, own{0};
  std::atomic<void*> user{nullptr};
  std::atomic<unsigned> wished{0};  // when it began
};
constexpr uint64_t kPairs = 1 << 16;
constexpr Handle kChannelBit = 8;
constexpr int kNumberShift = 4;
Pair g_pairs[2][kPairs];  // all zero; too many for clang to see that it is constant
constinit std::atomic<uint64_t> g_next_pair[2] = {1, 1};

Pair& place_of(Handle pair) {
  return g_pairs[(pair & kChannelBit) != 0 ? 1 : 0][(pair >> kNumberShift) % kPairs];
}

Handle make_pair(bool channel, Handle own, void* user, unsigned wished) {
  const uint64_t number = g_next_pair[channel ? 1 : 0].fetch_add(1, std::memory_order_relaxed);
  const Handle name = number << kNumberShift | (channel ? kChannelBit : 0) | kPairBits;
  Pair& pair = place_of(name);
  pair.name.store(0, std::memory_order_relaxed);
  pair.own.store(own, std::memory_order_release);
  pair.user.store(user, std::memory_order_release);
  pair.wished.store(wished, std::memory_order_release);
  pair.name.store(name, std::memory_order_release);
  return name;
}

void* theirs_of(void* handle) {
  const Handle given = reinterpret_cast<Handle>(handle);
  if ((given & kHandleBits) == 0) return handle;
  if ((given & kHandleBits) != kPairBits) return nullptr;
  const Pair& pair = place_of(given);
  if (pair.name.load(std::memory_order_acquire) != given) return nullptr;
  void* user = pair.user.load(std::memory_order_acquire);
  return pair.name.load(std::memory_order_relaxed) == given ? user : nullptr;
}

void* as_pointer(Handle handle) {
  return reinterpret_cast<void*>(handle);  // NOLINT(performance-no-int-to-ptr): never followed, by nobody
}

// NCCL reads its mask before each call of the API: what changes it meanwhile is for later calls. Of a group, launches
// and kernels go by the first one.
struct GroupOfThread {
  bool begun = false, has_call = false;
  unsigned wished = 0;
};
constinit thread_local GroupOfThread t_group;

// What PowerCCL wanted, beside what the user's profiler wanted: bits that no event has.
constexpr unsigned kWeAsked = 1u << 31;
constexpr unsigned kBitsOfInt = ~kWeAsked;

void call_begins(uint64_t type, unsigned wished) {
  if (type == kEventGroupApi) {
    t_group = {true, false, wished};
  } else if ((type == kEventCollApi || type == kEventP2pApi) && !t_group.has_call) {
    t_group.has_call = true;
    t_group.wished = wished;
  }
}

// NCCL's network thread serves other processes too, and then reports their handles.
bool is_of_another_process(uint64_t type, const EventDescriptor& event) {
  return type == kEventProxyOp && event.proxy_op.pid != g_pid.load(std::memory_order_relaxed);
}

// What was wanted when the call that `event` is part of was made.
unsigned wished_for(const EventDescriptor& event, uint64_t type, unsigned now) {
  if (type == kEventGroupApi || type == kEventCollApi || type == kEventP2pApi) return now;
  const Handle parent = reinterpret_cast<Handle>(event.parent);
  if ((parent & kHandleBits) == kPairBits && !is_of_another_process(type, event)) {
    const Pair& pair = place_of(parent);
    const unsigned wished = pair.wished.load(std::memory_order_acquire);
    if (pair.name.load(std::memory_order_acquire) == parent) return wished;
  }
  return t_group.begun ? t_group.wished : now;
}

void say_left_out(const ChainEnvironment& environment, const char* reason) {
  if (!environment.speaks) return;
  say("run without PowerCCL to have it alone; POWERCCL_CHAINED_PROFILER=none says that it is not wanted",
      "cannot use your profiler plugin %s: %s; it is left out", environment.profiler, reason);
}

// The newest version that the plugin and NCCL both have.
const void* table_of(void* library, int nccl_speaks, int* version) {
  char symbol[32];
  for (*version = nccl_speaks; *version >= kOldest; --*version) {
    snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", *version);
    if (const void* table = chained_table(library, symbol)) return table;
  }
  return nullptr;
}

void explain(void* library, int nccl_speaks, char* reason, size_t size) {
  char symbol[32];
  for (int version = 1; version <= kNewest; ++version) {
    snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
    if (dlsym(library, symbol) == nullptr) continue;
    if (chained_table(library, symbol) == nullptr) return;  // PowerCCL's own, which is here already
    if (version < kOldest) {
      snprintf(reason, size, "it speaks version %d of NCCL's profiler interface, and PowerCCL passes on 4 and later",
               version);
    } else {
      snprintf(reason, size, "it speaks version %d of NCCL's profiler interface, and this NCCL only %d", version,
               nccl_speaks);
    }
    return;
  }
  snprintf(reason, size, "it has no ncclProfiler_v4 or later");
}

// Under g_chain_mutex.
bool load(int nccl_speaks) {
  if (g_chain.library != nullptr) return true;
  if (g_chain.failed) return false;
  ChainEnvironment environment;
  read_chain_environment(&environment);
  char reason[256];
  void* library = open_chained_plugin("profiler", environment.profiler, reason, sizeof(reason));
  int version = 0;
  const void* table = library == nullptr ? nullptr : table_of(library, nccl_speaks, &version);
  if (table == nullptr) {
    g_chain.failed = true;
    if (library != nullptr && reason[0] == '\0') explain(library, nccl_speaks, reason, sizeof(reason));
    if (environment.profiler[0] != '\0' && reason[0] != '\0') say_left_out(environment, reason);
    if (library != nullptr) dlclose(library);
    return false;
  }
  g_chain.library = library;
  g_chain.version.store(version, std::memory_order_relaxed);
  g_chain.table.store(static_cast<const ProfilerV5*>(table), std::memory_order_release);
  if (environment.debug >= 1 && environment.speaks) {
    say(nullptr, "profiler %s (v%d) receives all events too", static_cast<const ProfilerV5*>(table)->name, version);
  }
  return true;
}

// Under g_chain_mutex.
void let_go() {
  if (g_chain.communicators > 0) return;
  g_chain.table.store(nullptr, std::memory_order_release);
  g_chain.word.store(0, std::memory_order_relaxed);
  g_chain.seen.store(0, std::memory_order_relaxed);
  want_for_chained(0);
  if (g_chain.library != nullptr) dlclose(g_chain.library);
  g_chain.library = nullptr;
}

int begin(int version, void** user, const CommunicatorSeen& seen, Logger log) {
  const ProfilerV5* table = g_chain.table.load(std::memory_order_relaxed);
  int* word = reinterpret_cast<int*>(&g_chain.word);  // what NCCL's own is: written with plain stores or atomic ones
  if (version > 4) {
    return table->init(user, seen.id, word, seen.name, seen.nnodes, seen.nranks, seen.rank, log);
  }
  const ProfilerV4* old = reinterpret_cast<const ProfilerV4*>(table);
  return old->init(user, word, seen.name, seen.id, seen.nnodes, seen.nranks, seen.rank, log);
}

Both* unused_place() {
  for (Both& each : g_both) {
    if (!each.in_use.exchange(true, std::memory_order_acquire)) return &each;
  }
  return nullptr;
}

unsigned take_over_word() {
  const int wished = g_chain.word.load(std::memory_order_relaxed) &
                     static_cast<int>(events_of_version(g_chain.version.load(std::memory_order_relaxed)) & kBitsOfInt);
  Runtime* active = runtime();
  if (g_chain.seen.exchange(wished, std::memory_order_relaxed) != wished) {
    want_for_chained(wished);
    // Kernel events that they pay for are ours as well.
    const bool all = (wished & kEventKernelCh) != 0;
    if (active != nullptr)
      active->selection().others_decide(all ? KernelSelection::Others::kAll : KernelSelection::Others::kOurs);
  }
  return static_cast<unsigned>(wished) | (active != nullptr && active->selection().asked() ? kWeAsked : 0);
}

// `event` of an NCCL that speaks `version`, with the parents that they know.
void* start_theirs(const ProfilerV5& table, int theirs_version, void* context, int version, void* before,
                   EventDescriptor* event) {
  // The descriptor is NCCL's, who does not look at it again; it is put back all the same.
  const uint64_t type = version == 4 ? event->type & 0xff : event->type;
  void* const parent = event->parent;
  void** group = nullptr;
  if (version >= 5 && type == kEventColl) group = &event->coll.parent_group;
  if (version >= 5 && type == kEventP2p) group = &event->p2p.parent_group;
  void* const parent_group = group == nullptr ? nullptr : *group;
  if (!is_of_another_process(type, *event)) event->parent = theirs_of(parent);
  if (group != nullptr) *group = theirs_of(parent_group);
  if (group != nullptr && theirs_version == 4) event->parent = *group;
  void* user = theirs_of(before);
  {
    const Inside inside;
    table.start_event(context, &user, event);
  }
  event->parent = parent;
  if (group != nullptr) *group = parent_group;
  return user;
}

}  // namespace

Handle ours_of_pair(Handle name) {
  const Pair& pair = place_of(name);
  if (pair.name.load(std::memory_order_acquire) != name) return 0;
  const Handle own = pair.own.load(std::memory_order_acquire);
  return pair.name.load(std::memory_order_relaxed) == name ? own : 0;
}

void take_over_chained_mask() {
  take_over_word();
}

Both* chain_communicator(int version, const CommunicatorSeen& seen, Logger log) {
  const Inside inside;
  g_pid.store(getpid(), std::memory_order_relaxed);
  pthread_mutex_lock(&g_chain_mutex);
  Both* both = load(version) ? unused_place() : nullptr;
  if (both != nullptr) {
    both->own = nullptr;
    both->user = nullptr;
    both->mask = nullptr;
    const int error = begin(g_chain.version.load(std::memory_order_relaxed), &both->user, seen, log);
    if (error == 0) {
      ++g_chain.communicators;
    } else {
      ChainEnvironment environment;
      read_chain_environment(&environment);
      char reason[64];
      snprintf(reason, sizeof(reason), "its start failed with error %d", error);
      if (!g_chain.failed) say_left_out(environment, reason);
      g_chain.failed = true;
      both->in_use.store(false, std::memory_order_release);
      both = nullptr;
    }
  }
  let_go();
  pthread_mutex_unlock(&g_chain_mutex);
  return both;
}

void* context_of(Both* both) {
  return as_pointer(reinterpret_cast<uintptr_t>(both) | kBothBit);
}

void unchain_communicator(Both* both) {
  const Inside inside;
  pthread_mutex_lock(&g_chain_mutex);
  const ProfilerV5* table = g_chain.table.load(std::memory_order_relaxed);
  if (table != nullptr && both->user != nullptr) {
    const bool old = g_chain.version.load(std::memory_order_relaxed) == 4;
    (old ? reinterpret_cast<const ProfilerV4*>(table)->finalize : table->finalize)(both->user);
  }
  both->in_use.store(false, std::memory_order_release);
  if (g_chain.communicators > 0) --g_chain.communicators;
  let_go();
  pthread_mutex_unlock(&g_chain_mutex);
}

void* start_chained(const Both& both, int version, Handle own, void* before, EventDescriptor* event) {
  const uint64_t type = version == 4 ? event->type & 0xff : event->type;
  const ProfilerV5* table = g_chain.table.load(std::memory_order_acquire);
  if (table == nullptr) return as_pointer(own);
  const unsigned now = take_over_word();
  call_begins(type, now);
  const unsigned wished = wished_for(*event, type, now);
  const int theirs_version = g_chain.version.load(std::memory_order_relaxed);
  const bool known = (type & events_of_version(theirs_version)) != 0;
  const bool wanted = known && (wished & kBitsOfInt & (type | events_inside(type))) != 0;
  void* user = wanted ? start_theirs(*table, theirs_version, both.user, version, before, event) : nullptr;
  // What has parts keeps what was wanted, even by neither: its parts come long after it.
  const bool has_parts = (type & (kEventCollApi | kEventP2pApi | kEventColl | kEventP2p)) != 0;
  const bool plain = (reinterpret_cast<Handle>(user) & kHandleBits) == 0;
  if (user == nullptr && !has_parts) return as_pointer(own);
  if (own == 0 && plain && !has_parts) return user;
  return as_pointer(make_pair(type == kEventKernelCh, own, user, wished));
}

void stop_chained(void* handle) {
  const ProfilerV5* table = g_chain.table.load(std::memory_order_acquire);
  void* user = theirs_of(handle);
  if (table == nullptr || user == nullptr) return;
  const Inside inside;
  table->stop_event(user);
}

void record_state_chained(void* handle, int state, StateArguments* arguments) {
  const ProfilerV5* table = g_chain.table.load(std::memory_order_acquire);
  void* user = theirs_of(handle);
  if (table == nullptr || user == nullptr) return;
  if (state > last_state_of_version(g_chain.version.load(std::memory_order_relaxed))) return;
  const Inside inside;
  table->record_event_state(user, state, arguments);
}

bool we_asked_for(const EventDescriptor& task) {
  return (wished_for(task, task.type, kWeAsked) & kWeAsked) != 0;
}

}  // namespace powerccl::nccl
