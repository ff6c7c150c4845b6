// SPDX-License-Identifier: Apache-2.0
// Launches: the host callback behind a managed call, which gives its hold on the clock back.
#include "runtime/log.h"
#include "runtime/runtime.h"

namespace powerccl {

Handle Runtime::launch_begins(Communicator* communicator, Handle group, void* stream) {
  // Nothing to put behind the launch of a GPU that is not managed.
  if (!armed() || communicator == nullptr || !communicator->gpu->managed) return 0;
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
  launch->copy.kind = POWERCCL_REC_NONE;
  return make_handle(HandleKind::kLaunch, slot, serial);
}

void Runtime::launch_ends(Handle handle) {
  if (kind_of(handle) != HandleKind::kLaunch || slot_of(handle) >= kLaunches) return;
  Launch& launch = launches_[slot_of(handle)];
  if (launch.serial.load(std::memory_order_acquire) != serial_of(handle)) return;
  Communicator* communicator = launch.communicator;
  const Handle group = launch.group;
  void* stream = launch.stream;
  powerccl_trace_record copy = launch.copy;
  launch.serial.store(0, std::memory_order_release);
  if (!armed()) return;
  if (copy.kind != POWERCCL_REC_NONE) {
    copy.kernel.seen_stop_ns = monotonic_ns();
    communicator->gpu->trace.append(copy);
    if (communicator->held.load(std::memory_order_relaxed) == 0) return;
  }
  launched(communicator, group, stream);
}

// Copy engines have no channels to tell of: what is known is when the copies were given to the stream.
Handle Runtime::copy_begins(Communicator* communicator, const TaskSeen& task, void* stream) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return 0;
  uint32_t slot = 0;
  uint64_t serial = 0;
  Launch* launch = take_slot(launches_, &launch_serial_, &slot, &serial);
  if (launch == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    drop_holds(communicator);
    return 0;
  }
  launch->communicator = communicator;
  launch->group = make_handle(HandleKind::kGroup, 0, communicator->held_group.load(std::memory_order_relaxed));
  launch->stream = stream;
  const uint8_t pattern = task.operation.pattern;
  powerccl_trace_record& record = launch->copy;
  record = {};
  record.kind = POWERCCL_REC_KERNEL;
  record.comm = communicator->index;
  record.kernel.call_id = serial_of(task.call);
  record.kernel.seen_start_ns = monotonic_ns();
  record.kernel.bytes = task.operation.message_bytes * (size_counts_ranks(pattern) ? communicator->nranks : 1);
  record.kernel.pattern = pattern;
  record.kernel.algorithm = POWERCCL_ALGO_COPY_ENGINE;
  if (task.call & kCapturedBit) record.flags |= POWERCCL_FLAG_CAPTURED;
  return make_handle(HandleKind::kLaunch, slot, serial);
}

void Runtime::launched(Communicator* communicator, Handle group, void* stream) {
  const uint64_t serial = serial_of(group);
  if (communicator->held_group.load(std::memory_order_relaxed) != serial) return;
  Gpu* gpu = communicator->gpu;
  uint32_t holds = communicator->held.exchange(0, std::memory_order_acq_rel);
  if (holds == 0) {
    // A later kernel of the same group: the clock stays until this one has run, too.
    if (serial == 0) return;
    gpu->actuator.hold_on();
    holds = 1;
  }
  const uint64_t call = communicator->held_call.load(std::memory_order_relaxed);
  Callback* callback = nullptr;
  const uint32_t first = next_callback_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t tried = 0; tried < kCallbacks && callback == nullptr; ++tried) {
    Callback& candidate = callbacks_[(first + tried) % kCallbacks];
    uint32_t free = Callback::kFree;
    // Filled in while cancelled, so that nobody takes half of it for a waiting one.
    if (candidate.state.compare_exchange_strong(free, Callback::kCancelled, std::memory_order_acquire)) {
      callback = &candidate;
    }
  }
  if (callback == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    gpu->actuator.release(holds, call);
    return;
  }
  callback->runtime = this;
  callback->communicator.store(communicator->index, std::memory_order_relaxed);
  callback->gpu.store(gpu->index, std::memory_order_relaxed);
  callback->holds.store(holds, std::memory_order_relaxed);
  callback->call.store(call, std::memory_order_relaxed);
  callback->state.store(Callback::kWaiting, std::memory_order_release);
  const int error = door_.call_behind(door_.context, stream, callback_fired, callback);
  if (error == 0) return;
  if (callback->state.exchange(Callback::kFree, std::memory_order_acq_rel) == Callback::kWaiting) {
    gpu->actuator.release(holds, call);
  }
  if (gpu->policy.exchange(&gpu->observe, std::memory_order_acq_rel) != &gpu->observe) {
    say("run `powerccl doctor`; the job itself is not affected",
        "no callback can be put behind a call (CUDA error %d); policy becomes observe", error);
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
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_CALLBACK;
  record.comm = callback->communicator.load(std::memory_order_relaxed);
  record.callback.call_id = call;
  record.callback.time_ns = monotonic_ns();
  if (callback->state.exchange(Callback::kFree, std::memory_order_acq_rel) == Callback::kWaiting) {
    gpu->actuator.release(holds, call);
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
      communicator->gpu->actuator.release(holds, callback.call.load(std::memory_order_relaxed));
    }
  }
}

}  // namespace powerccl
