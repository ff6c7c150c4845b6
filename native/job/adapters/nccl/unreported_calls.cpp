// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/unreported_calls.h"

#include "adapters/nccl/api_communicators.h"
#include "adapters/nccl/event_masks.h"
#include "adapters/nccl/eventless_calls.h"
#include "adapters/nccl/marks.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

namespace powerccl::nccl {
namespace {

constexpr int kCopiesUnreported = 5;  // by that version of the profiler interface, which only NCCL 2.28 speaks at most

constexpr uint32_t kCalls = 16;  // of a group; a larger one is not recorded
struct Pending {
  Communicator* communicator = nullptr;
  uint32_t count = 0, reported = 0;
  bool others = false;  // some calls may be reported to a plugin, or have another communicator or stream
  MarkPair* pair = nullptr;
  ApiCall calls[kCalls];
};
constinit thread_local Pending t_pending = {};

// What is known of a kind of calls (communicator, pattern, size class), by a hash. It says how often NCCL reported one
// to the plugin, or that it did not. If two kinds share an entry, some pairs of events are begun for nothing.
constexpr uint8_t kReportedTwice = 2, kUnreported = 3;
constexpr uint32_t kKinds = 1024;
constinit std::atomic<uint8_t> g_kinds[kKinds] = {};

uint64_t bytes_of(const ApiCall& call) {
  return call.count * bytes_of_type(call.type);
}

std::atomic<uint8_t>& kind_of_call(const Communicator& communicator, const ApiCall& call) {
  const uint64_t key = uint64_t{communicator.index} << 16 | uint64_t{call.pattern} << 8 | size_class(bytes_of(call));
  return g_kinds[(key * 0x9e3779b97f4a7c15u >> 54) % kKinds];
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
  if (captured || pending.count == kCalls || !may_be_unreported(call)) pending.others = true;
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
