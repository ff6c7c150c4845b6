// SPDX-License-Identifier: Apache-2.0
#include "doors/nccl/untold_calls.h"

#include "doors/nccl/api_communicators.h"
#include "doors/nccl/event_masks.h"
#include "doors/nccl/marks.h"
#include "doors/nccl/preload_abi.h"
#include "doors/nccl/silent_calls.h"
#include "doors/nccl/thread.h"

namespace powerccl::nccl {
namespace {

constexpr int kVersion = 5;  // of the profiler interface, which NCCL 2.28 alone speaks at most

struct Pending {
  ApiCall call;
  Communicator* communicator = nullptr;  // null: there is none to look at
  uint32_t calls = 0, told = 0;
  MarkPair* pair = nullptr;
};
constinit thread_local Pending t_pending = {};

// What is known of a kind of calls (communicator, pattern, size class), by a hash: how often the plugin was told of
// one, or that it was not. Two kinds in one place: then some pairs of events are begun for nothing.
constexpr uint8_t kToldTwice = 2, kUntold = 3;
constexpr uint32_t kKinds = 1024;
constinit std::atomic<uint8_t> g_kinds[kKinds] = {};

std::atomic<uint8_t>& kind_of_call(const Communicator& communicator, const ApiCall& call) {
  const uint64_t bytes = call.count * bytes_of_type(call.type);
  const uint64_t key = uint64_t{communicator.index} << 16 | uint64_t{call.pattern} << 8 | size_class(bytes);
  return g_kinds[(key * 0x9e3779b97f4a7c15u >> 54) % kKinds];
}

bool may_be_copied(uint8_t pattern) {
  return pattern == POWERCCL_ALL_GATHER || pattern == POWERCCL_ALL_TO_ALL || pattern == POWERCCL_GATHER ||
         pattern == POWERCCL_SCATTER;
}

// As the plugin would have been told of it, with its events in the stream already.
void record(Runtime* runtime, const Pending& pending) {
  const ApiCall& call = pending.call;
  Communicator* communicator = pending.communicator;
  CallSeen seen;
  seen.pattern = call.pattern;
  seen.datatype = static_cast<uint8_t>(call.type);
  seen.message_bytes = call.count * bytes_of_type(call.type);
  seen.root = call.root;
  seen.stream = reinterpret_cast<uint64_t>(call.stream);
  const Handle group = runtime->group_begins(communicator);
  const Handle made = runtime->collective(communicator, group, seen);
  runtime->group_ending(group);
  runtime->launch_ends(runtime->copy_begins(communicator, made, call.stream));
  runtime->carried_out(communicator, made, pending.pair != nullptr ? POWERCCL_FLAG_KERNEL_ASKED : 0);
  runtime->group_ends(group);
  if (pending.pair == nullptr) return;
  MarkOf of;
  of.call = {communicator, communicator->index, made};
  of.stream = seen.stream;
  of.ran = true;
  of.kernel.pattern = call.pattern;
  of.kernel.algorithm = POWERCCL_ALGO_COPY_ENGINE;
  of.kernel.calls = 1;
  of.kernel.bytes =
      seen.message_bytes * (size_counts_ranks(call.pattern) ? static_cast<uint64_t>(communicator->nranks) : 1);
  marks().end(pending.pair, call.stream, of);
}

}  // namespace

void untold_call_made(const ApiCall& call, bool captured) {
  if (plugin_version() != kVersion) return;
  ++t_pending.calls;
  if (captured || call.exchange || call.count == 0 || !may_be_copied(call.pattern)) return;
  t_pending.call = call;
  t_pending.communicator = plugins_communicator(call.comm);
  t_pending.told = t_thread.told;
}

void untold_launch_begins() {
  Pending& pending = t_pending;
  if (pending.calls != 1 || pending.communicator == nullptr || pending.told != t_thread.told) return;
  const uint8_t known = kind_of_call(*pending.communicator, pending.call).load(std::memory_order_relaxed);
  if (known != kToldTwice && may_time_silent_call()) pending.pair = marks().begin(pending.call.stream);
}

void untold_launch_ended(int result) {
  Pending& pending = t_pending;
  Runtime* its = runtime();
  const bool untold = result == kNcclSuccess && pending.calls == 1 && pending.communicator != nullptr &&
                      pending.communicator->nranks > 1 && pending.told == t_thread.told && its != nullptr &&
                      tells_of_calls(static_cast<EventMask*>(pending.communicator->door));
  if (pending.calls == 1 && pending.communicator != nullptr) {
    std::atomic<uint8_t>& kind = kind_of_call(*pending.communicator, pending.call);
    const uint8_t known = kind.load(std::memory_order_relaxed);
    if (untold) {
      kind.store(kUntold, std::memory_order_relaxed);
    } else if (known < kToldTwice) {
      kind.store(known + 1, std::memory_order_relaxed);
    }
  }
  if (untold) {
    record(its, pending);
    pending.pair = nullptr;
  }
  untold_forget();
}

void untold_forget() {
  marks().drop(t_pending.pair);
  t_pending = {};
}

void plugin_told_of(Communicator* communicator) {
  ++t_thread.told;
  if (t_thread.comm != nullptr) plugins_communicator_is(t_thread.comm, communicator);
}

}  // namespace powerccl::nccl
