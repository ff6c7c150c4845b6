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

}  // namespace powerccl
