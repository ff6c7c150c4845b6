// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/api_calls.h"

#include "adapters/nccl/api_communicators.h"
#include "adapters/nccl/event_masks.h"
#include "adapters/nccl/eventless_calls.h"
#include "adapters/nccl/live.h"
#include "adapters/nccl/marks.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"
#include "adapters/nccl/unreported_calls.h"

namespace powerccl::nccl {
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
