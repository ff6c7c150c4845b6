// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/eventless_calls.h"

#include "adapters/nccl/api_calls.h"
#include "adapters/nccl/event_masks.h"
#include "adapters/nccl/live.h"
#include "adapters/nccl/marks.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

namespace powerccl::nccl {
namespace {

struct Call {
  Communicator* communicator;
  Handle group, call;
  void* stream;
  uint64_t bytes;  // NCCL tests' `size`
  MarkPair* pair;  // of the first call in its stream; the others of the group share it
  uint32_t live, kind;
  uint8_t pattern;
  bool asked, has_task, copied, ended;
  bool distrusted;  // it may have a task event, which is not heeded
};

constexpr uint32_t kCalls = 16;  // further ones of a group are recorded without times
struct Calls {
  uint32_t count;
  Call calls[kCalls];
};
constinit thread_local Calls t_calls = {};

// What is known of each kind. Two kinds may share a place: then some pairs are begun for nothing.
// Bit 7: without kernel events. Bits 4 to 6: pairs begun without having asked for kernel events, so that only copies
// could tell. Bits 0 and 1: calls that had a task.
constexpr uint8_t kEventless = 0x80, kTry = 0x10, kTries = 0x70, kTasks = 0x03, kEnoughTasks = 2;
constinit std::atomic<bool> g_no_kernel_events{false};
constexpr uint32_t kKinds = 4096;
constinit std::atomic<uint8_t> g_kinds[kKinds] = {};

// By size class, because a job may exchange another number of bytes each time.
uint32_t kind_of_call(const Communicator* communicator, uint8_t pattern, uint64_t bytes) {
  const uint64_t key = uint64_t{communicator->index} << 16 | uint64_t{pattern} << 8 | size_class(bytes);
  return static_cast<uint32_t>(key * 0x9e3779b97f4a7c15u >> 52) % kKinds;
}

bool is_eventless(uint8_t known) {
  return (known & kEventless) != 0;
}

// A pair costs 3 us of the stream's time on an H200 (docs/concepts/hardware.md). 800 us between two pairs keep the cost
// below half a per cent. The first 1024 are free: they hold a short job, and cost 3 ms.
constexpr int64_t kBetweenPairsNs = 800000, kFreePairs = 1024;
std::atomic<int64_t> g_paid_until_ns{0};

bool affordable() {
  const auto now = static_cast<int64_t>(monotonic_ns());
  int64_t paid = g_paid_until_ns.load(std::memory_order_relaxed);
  int64_t next = 0;
  do {
    next = (paid > now - kFreePairs * kBetweenPairsNs ? paid : now - kFreePairs * kBetweenPairsNs) + kBetweenPairsNs;
    if (next > now) return false;
  } while (!g_paid_until_ns.compare_exchange_weak(paid, next, std::memory_order_relaxed));
  return true;
}

bool needs_pair(std::atomic<uint8_t>* kind, bool asked) {
  const uint8_t known = kind->load(std::memory_order_relaxed);
  if (!is_eventless(known)) {
    if ((known & kTasks) >= kEnoughTasks) return false;
    if (!asked && (known & kTries) == kTries) return false;
    if (!asked) kind->store(static_cast<uint8_t>(known + kTry), std::memory_order_relaxed);
  }
  return affordable();
}

// It has no kernel events, as far as is known.
bool without_events(const Call& call) {
  if (call.has_task) return false;
  const uint8_t known = g_kinds[call.kind].load(std::memory_order_relaxed);
  return call.copied || call.distrusted || call.asked || (known & (kEventless | kTasks)) == kEventless;
}

Call* find(Handle call) {
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    if (t_calls.calls[i].call == call) return &t_calls.calls[i];
  }
  return nullptr;
}

// Symmetric kernels are there for three patterns. NCCL 2.29 and later broadcast without kernel events in any memory.
bool may_be_symmetric(const Call& call) {
  return call.pattern == POWERCCL_ALL_REDUCE || call.pattern == POWERCCL_ALL_GATHER ||
         call.pattern == POWERCCL_REDUCE_SCATTER;
}

uint8_t algorithm_of(const Call& call) {
  if (call.copied) return POWERCCL_ALGO_COPY_ENGINE;
  return may_be_symmetric(call) && !call.distrusted ? POWERCCL_ALGO_SYMMETRIC : POWERCCL_ALGO_UNKNOWN;
}

void learn(const Call& call) {
  std::atomic<uint8_t>& kind = g_kinds[call.kind];
  const uint8_t known = kind.load(std::memory_order_relaxed);
  if (call.distrusted) return;
  if (call.copied || (call.asked && !call.has_task)) {
    kind.store(known | kEventless, std::memory_order_relaxed);
  } else if (call.has_task && (known & kTasks) < kEnoughTasks) {
    kind.store(static_cast<uint8_t>(known + 1), std::memory_order_relaxed);
  }
}

// This call and the later ones of its communicator in its stream: one launch or several, one time.
void end_stream(uint32_t first) {
  Call& head = t_calls.calls[first];
  MarkPair* pair = nullptr;
  uint32_t live_slot = Live::kNone;
  MarkOf of;
  bool mixed = false;
  for (uint32_t i = first; i < t_calls.count; ++i) {
    Call& call = t_calls.calls[i];
    if (call.ended || call.communicator != head.communicator || call.stream != head.stream) continue;
    call.ended = true;
    if (call.pair != nullptr) pair = call.pair;
    if (call.live != Live::kNone) live_slot = call.live;
    if (!without_events(call)) {
      mixed = true;
      continue;
    }
    if (of.kernel.calls++ == 0) {
      of.call = {call.communicator, call.communicator->index, call.call};
      of.kernel.pattern = call.pattern;
      of.kernel.algorithm = algorithm_of(call);
    }
    of.kernel.bytes += call.bytes;
  }
  of.stream = reinterpret_cast<uint64_t>(head.stream);
  of.ran = true;
  const bool timed = of.kernel.calls > 0 && !mixed;
  live().end(live_slot, head.stream, timed ? of.call : CallOfStream());
  if (timed) {
    marks().end(pair, head.stream, of);
  } else {
    marks().drop(pair);
  }
}

void forget() {
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    live().end(t_calls.calls[i].live, t_calls.calls[i].stream, CallOfStream());
    marks().drop(t_calls.calls[i].pair);
  }
  t_calls.count = 0;
}

}  // namespace

void time_calls_without_kernel_events() {
  g_no_kernel_events.store(true, std::memory_order_relaxed);
}

bool may_time_eventless_call() {
  return affordable();
}

void eventless_call_made(Communicator* communicator, Handle group, Handle call, const CallSeen& seen, bool asked) {
  if (t_calls.count > 0 && t_calls.calls[0].group != group) forget();  // a group whose end never came
  if (call == 0 || communicator == nullptr || find(call) != nullptr || communicator->nranks < 2 ||
      seen.message_bytes == 0 || seen.captured || communicator->launches_elsewhere.load(std::memory_order_relaxed) ||
      t_calls.count == kCalls) {
    return;
  }
  Call made = {};
  made.communicator = communicator;
  made.group = group;
  made.call = call;
  made.stream = reinterpret_cast<void*>(seen.stream);  // NOLINT(performance-no-int-to-ptr): it was one
  made.bytes = total_bytes(seen.pattern, seen.message_bytes, communicator->nranks);
  made.pattern = seen.pattern;
  made.kind = kind_of_call(communicator, seen.pattern, made.bytes);
  made.asked = asked;
  made.live = Live::kNone;
  made.distrusted = communicator->events_distrusted.load(std::memory_order_relaxed) ||
                    g_no_kernel_events.load(std::memory_order_relaxed);
  bool shared = false;
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    const Call& earlier = t_calls.calls[i];
    const bool begun = earlier.pair != nullptr || earlier.live != Live::kNone;
    shared |= begun && earlier.communicator == communicator && earlier.stream == made.stream;
  }
  const uint8_t known = g_kinds[made.kind].load(std::memory_order_relaxed);
  if (!shared && (made.distrusted ? affordable() : needs_pair(&g_kinds[made.kind], asked))) {
    made.pair = marks().begin(made.stream);
    if ((is_eventless(known) || made.distrusted) && communicator->gpu->clock_policy->learns())
      made.live = live().begin(made.stream);
  }
  t_calls.calls[t_calls.count++] = made;
}

void eventless_call_has_task(Communicator* communicator, Handle call) {
  Call* made = find(call);
  if (made != nullptr) {
    made->has_task = !made->distrusted;
  } else if (communicator != nullptr && t_calls.count == 0 && (call & kCapturedBit) == 0) {
    // NCCL launches from a thread of its own (a non-blocking communicator): no group's end says anything.
    communicator->launches_elsewhere.store(true, std::memory_order_relaxed);
  }
}

void eventless_call_is_copied(Handle call) {
  if (Call* made = find(call)) made->copied = true;
}

void eventless_calls_end(Runtime* runtime, Handle group, bool counted_apart) {
  if (t_calls.count == 0 || t_calls.calls[0].group != group) return;
  for (uint32_t i = 0; i < t_calls.count; ++i) {
    Call& call = t_calls.calls[i];
    learn(call);
    // The GPU counts such a kernel and NCCL's host side does not. So each later kernel gets the times of another one
    // (NVIDIA/nccl#2368, seen with 2.32.3).
    if (counted_apart && call.pattern == POWERCCL_BROADCAST && call.asked && !call.has_task) {
      call.communicator->events_distrusted.store(true, std::memory_order_relaxed);
    }
    if (without_events(call)) {
      const uint32_t flags = (algorithm_of(call) == POWERCCL_ALGO_SYMMETRIC ? POWERCCL_FLAG_SYMMETRIC : 0u) |
                             (call.pair != nullptr ? POWERCCL_FLAG_KERNEL_ASKED : 0u);
      runtime->carried_out(call.communicator, call.call, static_cast<uint16_t>(flags));
    }
    if (!call.ended) end_stream(i);
  }
  t_calls.count = 0;
  marks().look();
}

namespace {

constexpr int kCopiesUnreported = 5;  // by that version of the profiler interface, which only NCCL 2.28 speaks at most

constexpr uint32_t kUnreportedCalls = 16;  // of a group; a larger one is not recorded
struct Pending {
  Communicator* communicator = nullptr;
  uint32_t count = 0, reported = 0;
  bool others = false;  // some calls may be reported to a plugin, or have another communicator or stream
  MarkPair* pair = nullptr;
  ApiCall calls[kUnreportedCalls];
};
constinit thread_local Pending t_pending = {};

// What is known of a kind of calls (communicator, pattern, size class), by a hash. It says how often NCCL reported one
// to the plugin, or that it did not. If two kinds share an entry, some pairs of events are begun for nothing.
constexpr uint8_t kReportedTwice = 2, kUnreported = 3;
constexpr uint32_t kUnreportedKinds = 1024;
constinit std::atomic<uint8_t> g_unreported_kinds[kUnreportedKinds] = {};

uint64_t bytes_of(const ApiCall& call) {
  return call.count * bytes_of_type(call.type);
}

std::atomic<uint8_t>& kind_of_call(const Communicator& communicator, const ApiCall& call) {
  const uint64_t key = uint64_t{communicator.index} << 16 | uint64_t{call.pattern} << 8 | size_class(bytes_of(call));
  return g_unreported_kinds[(key * 0x9e3779b97f4a7c15u >> 54) % kUnreportedKinds];
}

bool may_be_unreported(const ApiCall& call) {
  if (call.one_sided) return true;
  if (plugin_version() != kCopiesUnreported || call.exchange || call.count == 0) return false;
  return call.pattern == POWERCCL_ALL_GATHER || call.pattern == POWERCCL_ALL_TO_ALL ||
         call.pattern == POWERCCL_GATHER || call.pattern == POWERCCL_SCATTER;
}

bool are_complete(const Pending& pending) {
  return pending.count > 0 && !pending.others && pending.communicator != nullptr &&
         pending.reported == t_thread.reported;
}

// As the plugin would have reported them, with their events in the stream already.
void record(Runtime* runtime, const Pending& pending) {
  Communicator* communicator = pending.communicator;
  MarkOf of;
  of.stream = reinterpret_cast<uint64_t>(pending.calls[0].stream);
  of.ran = true;
  of.kernel.pattern = pending.calls[0].pattern;
  bool copied = false;
  const Handle group = runtime->group_begins(communicator);
  for (uint32_t i = 0; i < pending.count; ++i) {
    const ApiCall& call = pending.calls[i];
    const CallSeen seen = seen_of(call);
    const Handle made = call.exchange ? runtime->point_to_point(communicator, group, call.send, seen)
                                      : runtime->collective(communicator, group, seen);
    if (of.call.call == 0) of.call = {communicator, communicator->index, made};
    if (call.exchange && of.kernel.calls > 0) continue;  // all that is exchanged in a group is one call
    copied = !call.exchange;
    ++of.kernel.calls;
    of.kernel.bytes += total_bytes(call.pattern, seen.message_bytes, communicator->nranks);
    if (copied) runtime->carried_out(communicator, made, pending.pair != nullptr ? POWERCCL_FLAG_KERNEL_ASKED : 0);
  }
  runtime->group_ending(group);
  void* stream = pending.calls[0].stream;
  runtime->launch_ends(copied ? runtime->copy_begins(communicator, of.call.call, stream)
                              : runtime->launch_begins(communicator, group, stream));
  runtime->group_ends(group);
  if (copied) of.kernel.algorithm = POWERCCL_ALGO_COPY_ENGINE;
  if (pending.pair != nullptr) marks().end(pending.pair, stream, of);
}

}  // namespace

void unreported_call_made(const ApiCall& call, bool captured) {
  Pending& pending = t_pending;
  const bool first = pending.count == 0;
  if (captured || pending.count == kUnreportedCalls || !may_be_unreported(call)) pending.others = true;
  if (!first && (pending.calls[0].comm != call.comm || pending.calls[0].stream != call.stream)) pending.others = true;
  if (pending.others) return;
  if (first) {
    pending.communicator = plugins_communicator(call.comm);
    pending.reported = t_thread.reported;
  }
  pending.calls[pending.count++] = call;
}

void unreported_launch_begins() {
  Pending& pending = t_pending;
  if (!are_complete(pending)) return;
  const ApiCall& call = pending.calls[0];
  const bool reported =
      !call.one_sided && kind_of_call(*pending.communicator, call).load(std::memory_order_relaxed) == kReportedTwice;
  if (!reported && may_time_eventless_call()) pending.pair = marks().begin(call.stream);
}

void unreported_launch_ended(int result) {
  Pending& pending = t_pending;
  if (pending.count == 0) return;
  Runtime* active = runtime();
  const bool unreported = result == kNcclSuccess && are_complete(pending) && pending.communicator->nranks > 1 &&
                          active != nullptr && tells_of_calls(static_cast<EventMask*>(pending.communicator->adapter));
  if (pending.communicator != nullptr && !pending.others && result == kNcclSuccess) {
    std::atomic<uint8_t>& kind = kind_of_call(*pending.communicator, pending.calls[0]);
    const uint8_t known = kind.load(std::memory_order_relaxed);
    if (unreported) {
      kind.store(kUnreported, std::memory_order_relaxed);
    } else if (known < kReportedTwice) {
      kind.store(known + 1, std::memory_order_relaxed);
    }
  }
  if (unreported) {
    record(active, pending);
    pending.pair = nullptr;
  }
}

void unreported_forget() {
  marks().drop(t_pending.pair);
  t_pending.pair = nullptr;
  t_pending.communicator = nullptr;
  t_pending.count = 0;
  t_pending.others = false;
}

void plugin_reported(Communicator* communicator) {
  ++t_thread.reported;
  if (t_thread.comm != nullptr) plugins_communicator_is(t_thread.comm, communicator);
}

}  // namespace powerccl::nccl
