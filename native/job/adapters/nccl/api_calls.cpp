// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/api_calls.h"

#include "adapters/nccl/cuda.h"
#include "adapters/nccl/event_masks.h"
#include "adapters/nccl/eventless_calls.h"
#include "adapters/nccl/live.h"
#include "adapters/nccl/marks.h"
#include "adapters/nccl/originals.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

namespace powerccl::nccl {
namespace {

struct Known {
  uint64_t id = 0;
  std::atomic<Communicator*> communicator{nullptr};
  std::atomic<Communicator*> plugins{nullptr};  // the plugin's, or null
  std::atomic<bool> settled{false};             // brought up, or not recorded
  uint32_t splits = 0;
};
KeyTable<Known, 1024> g_known;

uint64_t mixed(uint64_t hash, uint64_t with) {
  hash = (hash ^ with) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

constexpr uint32_t kComing = 32;
struct Coming {
  void** slot[kComing];
  uint64_t id[kComing];
  uint32_t count;
};
constinit thread_local Coming t_coming = {};

using Ask = int (*)(void* comm, int* answer);
bool ask(const char* function, void* comm, int* answer) {
  auto* real = reinterpret_cast<Ask>(find_original(function, Library::kNccl));
  return real != nullptr && real(comm, answer) == kNcclSuccess;
}

void no_kernel_events(void*, bool) {}

// Under g_mutex.
void bring_up(void* comm, Known* known) {
  known->settled.store(true, std::memory_order_release);
  CommunicatorSeen seen;
  int device = -1;
  if (plugin_came()) return;
  if (!ask("ncclCommCount", comm, &seen.nranks) || !ask("ncclCommUserRank", comm, &seen.rank) ||
      !ask("ncclCommCuDevice", comm, &device)) {
    return;
  }
  seen.id = known->id;
  Runtime* active = open_runtime();
  set_api_came();
  Adapter adapter;
  library_text(adapter.library, sizeof(adapter.library), "preload");
  adapter.sees_calls = true;
  adapter.ask_kernel_events = no_kernel_events;
  adapter.call_behind = g_cuda.launch_host_func != nullptr ? call_behind : nullptr;
  adapter.open_reader = open_nvml_reader;
  known->communicator.store(active->communicator_up(seen, gpu_of_device(g_cuda, device), adapter),
                            std::memory_order_release);
}

bool is_ready(void* comm) {
  int state = kNcclSuccess;
  return !ask("ncclCommGetAsyncError", comm, &state) || state == kNcclSuccess;
}

}  // namespace

Communicator* communicator_of(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr) return nullptr;
  if (!known->settled.load(std::memory_order_acquire)) {
    pthread_mutex_lock(&g_mutex);
    if (!known->settled.load(std::memory_order_relaxed) && is_ready(comm)) bring_up(comm, known);
    pthread_mutex_unlock(&g_mutex);
  }
  return known->communicator.load(std::memory_order_acquire);
}

Communicator* plugins_communicator(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr || runtime() == nullptr) return nullptr;
  Communicator* settled = known->plugins.load(std::memory_order_acquire);
  if (settled != nullptr) return settled;
  int ranks = 0, rank = 0, device = -1;
  if (!ask("ncclCommCount", comm, &ranks) || !ask("ncclCommUserRank", comm, &rank) ||
      !ask("ncclCommCuDevice", comm, &device)) {
    return nullptr;
  }
  settled = runtime()->only_communicator(ranks, rank, gpu_of_device(g_cuda, device));
  if (settled != nullptr) known->plugins.store(settled, std::memory_order_release);
  return settled;
}

void plugins_communicator_is(void* comm, Communicator* communicator) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr || known->plugins.load(std::memory_order_relaxed) == communicator) return;
  known->plugins.store(communicator, std::memory_order_release);
}

void communicator_coming(void** slot, uint64_t id) {
  if (slot == nullptr || t_coming.count == kComing) return;
  t_coming.slot[t_coming.count] = slot;
  t_coming.id[t_coming.count++] = id;
}

void communicators_came(int result) {
  const uint32_t count = t_coming.count;
  t_coming.count = 0;
  if (result != kNcclSuccess && result != kNcclInProgress) return;
  for (uint32_t i = 0; i < count; ++i) {
    void* comm = *t_coming.slot[i];
    if (comm == nullptr) continue;
    bool added = false;
    Known* known = g_known.find_or_add(reinterpret_cast<uint64_t>(comm), &added);
    if (known == nullptr) continue;
    pthread_mutex_lock(&g_mutex);
    known->id = t_coming.id[i];
    known->splits = 0;
    known->communicator.store(nullptr, std::memory_order_relaxed);
    known->plugins.store(nullptr, std::memory_order_relaxed);
    known->settled.store(false, std::memory_order_relaxed);
    if (result == kNcclSuccess) bring_up(comm, known);
    pthread_mutex_unlock(&g_mutex);
  }
}

uint64_t id_of(const UniqueId& id) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char each : id.bytes) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return hash;
}

// All its ranks are in this process.
uint64_t id_of_all() {
  return mixed(monotonic_ns(), static_cast<uint64_t>(getpid()));
}

uint64_t id_of_split(void* parent, int color) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(parent));
  if (known == nullptr) return mixed(1, static_cast<uint64_t>(color));
  return mixed(mixed(known->id, ++known->splits), static_cast<uint64_t>(color));
}

uint64_t id_without(void* parent, const int* ranks, int count) {
  uint64_t left_out = 0;
  for (int i = 0; ranks != nullptr && i < count; ++i) left_out = mixed(left_out, static_cast<uint64_t>(ranks[i]));
  return id_of_split(parent, static_cast<int>(left_out >> 33));
}

void communicator_given_up(void* comm) {
  Runtime* active = runtime();
  if (active == nullptr) return;
  Communicator* communicator = communicator_of(comm);
  active->calls_given_up(communicator != nullptr ? communicator : plugins_communicator(comm));
}

Communicator* communicator_taken(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr) return nullptr;
  Communicator* communicator = known->communicator.exchange(nullptr, std::memory_order_acq_rel);
  g_known.remove(reinterpret_cast<uint64_t>(comm));
  return communicator;
}

void communicator_gone(Communicator* communicator) {
  if (communicator == nullptr) return;
  live().finish(communicator);
  marks().finish(communicator);
  runtime()->communicator_down(communicator);
}

namespace {

// What one communicator does in one stream between two launches.
struct Part {
  void* stream;
  void* comm;
  Communicator* communicator;  // null: a plugin reports its calls
  CallOfStream before;         // the stream's last call until now
  CallOfStream first;          // of these; the plugin's is not known
  KernelRan kernel;
  Handle launch;
  MarkPair* pair;
  uint32_t live;
  uint32_t burst;  // of marks
  bool captured, asked, stalls;
};

constexpr uint32_t kParts = 16;  // further ones are recorded without times
struct Calls {
  Handle group;
  uint32_t count;
  Part parts[kParts];
};
constinit thread_local Calls t_calls = {};

bool is_captured(void* stream) {
  int status = 0;
  return g_cuda.stream_is_capturing != nullptr && g_cuda.stream_is_capturing(stream, &status) == 0 && status != 0;
}

Part* part_of(const ApiCall& call) {
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    Part& part = t_calls.parts[i];
    if (part.stream == call.stream && part.comm == call.comm) return &part;
  }
  return nullptr;
}

void add_to_kernel(KernelRan* kernel, const Communicator* communicator, const ApiCall& call, uint64_t bytes) {
  // All that is exchanged in a group is one call, and the runtime knows what it amounts to.
  if (call.exchange) {
    if (kernel->calls == 0) kernel->calls = 1;
    return;
  }
  if (kernel->calls++ == 0) kernel->pattern = call.pattern;
  kernel->bytes += total_bytes(call.pattern, bytes, communicator->nranks);
}

bool first_of_stream(uint32_t index) {
  for (uint32_t i = 0; i < index; ++i) {
    if (t_calls.parts[i].stream == t_calls.parts[index].stream) return false;
  }
  return true;
}

}  // namespace

CallSeen seen_of(const ApiCall& call) {
  CallSeen seen;
  seen.pattern = call.pattern;
  seen.datatype = static_cast<uint8_t>(call.type);
  seen.message_bytes = call.count * bytes_of_type(call.type);
  seen.root = call.root;
  seen.stream = reinterpret_cast<uint64_t>(call.stream);
  return seen;
}

void forget_calls() {
  t_calls.group = 0;
  t_calls.count = 0;
  t_thread.stream = {};
  unreported_forget();
}

void call_made(const ApiCall& call) {
  Communicator* communicator = communicator_of(call.comm);
  Runtime* active = runtime();
  Streams* streams = active != nullptr ? active->streams() : nullptr;
  if (streams == nullptr) return;
  tell_launches(streams);
  Part* part = part_of(call);
  Part beyond = {};
  if (part == nullptr) {
    part = t_calls.count < kParts ? &t_calls.parts[t_calls.count++] : &beyond;
    *part = {};
    part->stream = call.stream;
    part->comm = call.comm;
    part->communicator = communicator;
    part->live = Live::kNone;
    part->captured = is_captured(call.stream);
    if (part->captured && active->selection().capture_begins()) time_calls_without_kernel_events();
    part->before = streams->last_call(key_of(call.stream));
  }
  const uint64_t handle = reinterpret_cast<uint64_t>(call.stream);
  t_thread.stream = {handle, t_calls.count == 1 || (t_thread.stream.known && t_thread.stream.handle == handle)};
  if (communicator == nullptr) {
    check_mask_owner(active);  // a plugin that receives no more events cannot see that
    unreported_call_made(call, part->captured);
    return;
  }

  CallSeen seen = seen_of(call);
  seen.captured = part->captured;
  if (active->selection().asked()) part->asked = true;
  if (t_calls.group == 0) t_calls.group = active->group_begins(communicator);
  const Handle made = call.exchange ? active->point_to_point(communicator, t_calls.group, call.send, seen)
                                    : active->collective(communicator, t_calls.group, seen);
  if (part->first.call == 0) part->first = {communicator, communicator->index, made};
  add_to_kernel(&part->kernel, communicator, call, seen.message_bytes);
}

void launch_begins() {
  Runtime* active = runtime();
  Streams* streams = active != nullptr ? active->streams() : nullptr;
  if (streams == nullptr || t_calls.count == 0) return;
  unreported_launch_begins();
  if (t_calls.group != 0) active->group_ending(t_calls.group);
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    Part& part = t_calls.parts[i];
    if (part.captured) continue;
    if (part.communicator != nullptr)
      part.launch = active->launch_begins(part.communicator, t_calls.group, part.stream);
    if (!first_of_stream(i)) continue;
    part.stalls = streams->computes(key_of(part.stream)) && marks().affordable(&part.burst);
    const bool timed = part.communicator != nullptr && part.asked;
    if (timed || part.stalls) part.pair = marks().begin(part.stream);
    if (part.communicator != nullptr && part.communicator->gpu->clock_policy->learns()) {
      part.live = live().begin(part.stream);
    }
  }
}

void launch_ended(int result) {
  unreported_launch_ended(result);
  Runtime* active = runtime();
  Streams* streams = active != nullptr ? active->streams() : nullptr;
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    Part& part = t_calls.parts[i];
    live().end(part.live, part.stream, result == kNcclSuccess ? part.first : CallOfStream());
    if (active != nullptr && part.launch != 0) active->launch_ends(part.launch);
    if (part.pair == nullptr) continue;
    MarkOf of;
    of.call = part.first;
    if (of.call.call == 0 && streams != nullptr) {
      of.call = streams->last_call(key_of(part.stream));
      if (of.call.call == part.before.call) of.call = {};
    }
    // A non-blocking communicator launches later, from a thread of NCCL's.
    if (result != kNcclSuccess || of.call.call == 0) {
      marks().drop(part.pair);
      continue;
    }
    of.stream = reinterpret_cast<uint64_t>(part.stream);
    of.waited = part.stalls;
    of.burst = part.burst;
    of.ran = part.communicator != nullptr && part.asked;
    of.kernel = part.kernel;
    marks().end(part.pair, part.stream, of);
  }
  if (active != nullptr && t_calls.group != 0) active->group_ends(t_calls.group);
  if (t_calls.count > 0) marks().look();
  forget_calls();
}

}  // namespace powerccl::nccl
