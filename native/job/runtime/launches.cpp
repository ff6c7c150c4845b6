// SPDX-License-Identifier: Apache-2.0
// Launches: the host callback behind a managed call, which gives its hold on the clock back.
#include "base/log.h"
#include "runtime/runtime.h"

namespace powerccl {

Handle Runtime::launch_begins(Communicator* communicator, Handle group, void* stream) {
  // Nothing to put behind the launch of a GPU whose calls are not held.
  if (!armed() || communicator == nullptr || !communicator->gpu->holds_calls()) return 0;
  uint32_t slot = 0;
  uint64_t serial = 0;
  Launch* launch = take_slot(launches_, &launch_serial_, &slot, &serial);
  if (launch == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    drop_holds(communicator);
    return 0;
  }
  launch->communicator = communicator;
  launch->group = group;
  launch->stream = stream;
  return make_handle(HandleKind::kLaunch, slot, serial);
}

void Runtime::launch_ends(Handle handle) {
  if (kind_of(handle) != HandleKind::kLaunch || slot_of(handle) >= kLaunches) return;
  Launch& launch = launches_[slot_of(handle)];
  if (launch.serial.load(std::memory_order_acquire) != serial_of(handle)) return;
  Communicator* communicator = launch.communicator;
  const Handle group = launch.group;
  void* stream = launch.stream;
  launch.serial.store(0, std::memory_order_release);
  if (armed()) launched(communicator, group, stream);
}

Handle Runtime::copy_begins(Communicator* communicator, Handle call, void* stream) {
  if (!armed() || communicator == nullptr) return 0;
  const uint32_t slot = slot_of(call) / kGpus;  // 0: the call was made outside of all groups
  if (slot == 0) return launch_begins(communicator, 0, stream);
  powerccl_trace_record* record = find_call(communicator, call);
  if (record == nullptr) return 0;
  record->flags |= POWERCCL_FLAG_COPY_ENGINE;
  return launch_begins(communicator, make_handle(HandleKind::kGroup, slot - 1, groups_[slot - 1].serial.load()),
                       stream);
}

// The library reports no launch where a call becomes none of its profiled kernels. Its group has ended, so what the
// call is carried out by is in the stream: the hold is given back behind it.
void Runtime::launch_the_rest(CallGroup* group, Handle handle) {
  const auto launch = [&](Communicator* communicator, uint64_t stream) {
    if (communicator->held.load(std::memory_order_relaxed) == 0) return;
    launched(communicator, handle, reinterpret_cast<void*>(stream));  // NOLINT(performance-no-int-to-ptr): it was one
  };
  for (uint32_t i = 0; i < group->call_count; ++i) {
    launch(group->calls[i].communicator, group->calls[i].record.call.stream);
  }
  for (uint32_t i = 0; i < group->exchange_count; ++i) {
    launch(group->exchanges[i].communicator, group->exchanges[i].record.call.stream);
  }
}

void Runtime::launched(Communicator* communicator, Handle group, void* stream) {
  const uint64_t serial = serial_of(group);
  if (communicator->held_group.load(std::memory_order_relaxed) != serial) return;
  Gpu* gpu = communicator->gpu;
  uint32_t holds = communicator->held.exchange(0, std::memory_order_acq_rel);
  if (holds == 0) {
    // A later kernel of the same group: the clock stays until this one has run, too.
    if (serial == 0) return;
    gpu->per_call.hold_on();
    holds = 1;
  }
  const uint64_t call = communicator->held_call.load(std::memory_order_relaxed);
  Callback* callback = nullptr;
  const uint32_t first = next_callback_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t tried = 0; tried < kCallbacks && callback == nullptr; ++tried) {
    Callback& candidate = callbacks_[(first + tried) % kCallbacks];
    uint32_t free = Callback::kFree;
    // Filled in while cancelled, so that no thread takes half of it for a waiting one.
    if (candidate.state.compare_exchange_strong(free, Callback::kCancelled, std::memory_order_acquire)) {
      callback = &candidate;
    }
  }
  if (callback == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    gpu->per_call.release(holds, call);
    return;
  }
  callback->runtime = this;
  callback->communicator.store(communicator->index, std::memory_order_relaxed);
  callback->gpu.store(gpu->index, std::memory_order_relaxed);
  callback->holds.store(holds, std::memory_order_relaxed);
  callback->call.store(call, std::memory_order_relaxed);
  callback->state.store(Callback::kWaiting, std::memory_order_release);
  const int error = adapter_.call_behind(adapter_.context, stream, callback_fired, callback);
  if (error == 0) return;
  if (callback->state.exchange(Callback::kFree, std::memory_order_acq_rel) == Callback::kWaiting) {
    gpu->per_call.release(holds, call);
  }
  if (!gpu->withdrawn.exchange(true, std::memory_order_acq_rel)) {
    say("run `powerccl doctor`; the job itself is not affected",
        "cannot add a host callback after a call (CUDA error %d); the policy is now observe", error);
    gpu->trace.note("host callback refused: disarmed to observe");
  }
}

// On a thread of CUDA's, which must not call CUDA: the clock thread does the rest.
void Runtime::callback_fired(void* data) {
  Callback* callback = static_cast<Callback*>(data);
  Runtime* runtime = callback->runtime;
  if (!runtime->armed()) return;
  Gpu* gpu = &runtime->gpus_[callback->gpu.load(std::memory_order_relaxed)];
  const uint32_t holds = callback->holds.load(std::memory_order_relaxed);
  const uint64_t call = callback->call.load(std::memory_order_relaxed);
  const powerccl_trace_record record =
      callback_record(callback->communicator.load(std::memory_order_relaxed), call, monotonic_ns());
  if (callback->state.exchange(Callback::kFree, std::memory_order_acq_rel) == Callback::kWaiting) {
    gpu->per_call.release(holds, call);
  }
  gpu->trace.append(record);
}

// The communicator goes: its callbacks may never fire (an aborted one's do not), and its clock must not wait for them.
void Runtime::cancel_callbacks(Communicator* communicator) {
  for (Callback& callback : callbacks_) {
    if (callback.state.load(std::memory_order_acquire) != Callback::kWaiting) continue;
    if (callback.communicator.load(std::memory_order_relaxed) != communicator->index) continue;
    uint32_t waiting = Callback::kWaiting;
    const uint32_t holds = callback.holds.load(std::memory_order_relaxed);
    if (callback.state.compare_exchange_strong(waiting, Callback::kCancelled, std::memory_order_acq_rel)) {
      communicator->gpu->per_call.release(holds, callback.call.load(std::memory_order_relaxed));
    }
  }
}

// Where computation waited for communication, and when kernels ran that send no events: as the job's own streams tell.
void Runtime::computation_waited(Communicator* communicator, Handle call, uint64_t stream, uint64_t stall_ns,
                                 uint64_t resume_ns, uint32_t burst) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return;
  if (kind_of(call) != HandleKind::kCall || resume_ns < stall_ns) return;
  Gpu* gpu = communicator->gpu;
  gpu->trace.append(wait_record(communicator->index, {serial_of(call), stall_ns, resume_ns, stream, burst}));
  gpu->clock_policy->waited(serial_of(call), stall_ns);
}

// In every trace of the process: whose wait was the first to be left out says nothing about the others.
void Runtime::waits_paused(uint32_t burst, uint64_t marked, uint64_t unmarked) {
  if (!armed()) return;
  const powerccl_trace_record record = pause_record(burst, marked, unmarked, monotonic_ns());
  const uint32_t count = gpu_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) gpus_[i].trace.append(record);
}

void Runtime::kernel_ran(Communicator* communicator, Handle call, const KernelRan& ran) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return;
  if (kind_of(call) != HandleKind::kCall || ran.stop_ns < ran.start_ns) return;
  uint8_t pattern = ran.pattern;
  uint64_t bytes = ran.bytes;
  if (pattern == POWERCCL_PATTERN_UNKNOWN && !recall(call, &pattern, &bytes)) pattern = POWERCCL_PATTERN_UNKNOWN;
  // A communicator's kernels run one after the other, in whatever streams: what is before the last one's stop is
  // waiting for it.
  const uint64_t before_ns = communicator->kernel_stop_ns.exchange(ran.stop_ns, std::memory_order_relaxed);
  const uint64_t start_ns = before_ns > ran.start_ns && before_ns < ran.stop_ns ? before_ns : ran.start_ns;
  powerccl_trace_record record = kernel_record(communicator->index, serial_of(call), start_ns, ran.stop_ns,
                                               ran.calls > 1 ? POWERCCL_FLAG_GROUPED : 0u);
  record.kernel.bytes = bytes;
  record.kernel.pattern = pattern;
  record.kernel.algorithm = ran.algorithm;
  communicator->gpu->trace.append(record);
  // A fused kernel teaches nothing about its parts.
  if (ran.calls <= 1) selection_.answered(pattern, bytes, ran.stop_ns - start_ns);
}

CallOfStream Runtime::graph_launches(uint64_t graph) {
  // Of several GPUs in one process it is not known whose the graph is.
  if (!armed() || gpu_count_.load(std::memory_order_acquire) != 1 || !gpus_[0].clock_policy->learns()) return {};
  Gpu& gpu = gpus_[0];
  Communicator* communicator = gpu.captured.load(std::memory_order_acquire);
  if (communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return {};
  const uint64_t call = gpu.calls.fetch_add(1, std::memory_order_relaxed) + 1;
  gpu.clock_policy->graph_called(call, static_cast<uint32_t>(graph * 0x9e3779b97f4a7c15u >> 32));
  return {communicator, communicator->index, make_handle(HandleKind::kCall, gpu.index, call)};
}

void Runtime::graph_ran(Communicator* communicator, Handle call, uint64_t start_ns, uint64_t stop_ns) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return;
  Gpu* gpu = communicator->gpu;
  if (stop_ns < start_ns) return;
  const bool look = gpu->clock_policy->started(serial_of(call), start_ns);
  if (gpu->clock_policy->stopped(serial_of(call), stop_ns) || look) gpu->actuator.look();
}

void Runtime::kernel_seen(Communicator* communicator, Handle call, uint64_t now_ns, bool stops) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return;
  Gpu* gpu = communicator->gpu;
  if (kind_of(call) != HandleKind::kCall) return;
  const uint64_t id = serial_of(call);
  if (stops ? gpu->clock_policy->stopped(id, now_ns) : gpu->clock_policy->started(id, now_ns)) gpu->actuator.look();
}

uint64_t Runtime::stream_key(const Communicator* communicator, uint64_t handle) {
  return Streams::key(handle, communicator->gpu->identity.device, static_cast<uint64_t>(pthread_self()));
}

void Runtime::note_stream(Communicator* communicator, Handle call, const CallSeen& seen) {
  // A captured call runs at no time that streams could show.
  if (seen.captured || !seen.stream_known) return;
  streams_.called(stream_key(communicator, seen.stream), {communicator, communicator->index, call});
}

}  // namespace powerccl
