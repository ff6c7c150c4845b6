// SPDX-License-Identifier: Apache-2.0
// Kernels: what was launched together, from its first channel's start to its last channel's stop on the GPU.
#include "runtime/runtime.h"

namespace powerccl {
namespace {
constexpr uint64_t kForgottenKernelNs = 60000000000u;  // neither started nor stopped for so long: its events are lost
}

// The kernel, locked; null if the handle is of another kind or of a kernel that is over.
LaunchedKernel* Runtime::lock_kernel(Handle handle) {
  const HandleKind kind = kind_of(handle);
  if (kind != HandleKind::kKernel && kind != HandleKind::kTask && kind != HandleKind::kChannel) return nullptr;
  if (slot_of(handle) >= kKernels) return nullptr;
  LaunchedKernel* kernel = &kernels_[slot_of(handle)];
  if (kernel->serial.load(std::memory_order_acquire) != serial_of(handle)) return nullptr;
  kernel->lock.lock();
  if (kernel->serial.load(std::memory_order_relaxed) == serial_of(handle)) return kernel;
  kernel->lock.unlock();
  return nullptr;
}

Handle Runtime::kernel_begins(Communicator* communicator) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return 0;
  uint32_t slot = 0;
  uint64_t serial = 0;
  LaunchedKernel* kernel = take_slot(kernels_, &kernel_serial_, &slot, &serial);
  if (kernel == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    flush_kernels(nullptr, monotonic_ns() - kForgottenKernelNs);
    return 0;
  }
  SpinGuard guard(kernel->lock);
  kernel->communicator = communicator;
  kernel->group = adapter_.sees_calls ? 0 : group_begins(communicator);
  kernel->opened_ns = monotonic_ns();
  kernel->call = kernel->bytes = 0;
  kernel->gpu_start_ns = kernel->gpu_stop_ns = kernel->seen_start_ns = kernel->seen_stop_ns = 0;
  kernel->parts = PointToPoint();
  kernel->tasks = kernel->expected = kernel->started = kernel->stopped = kernel->holds = 0;
  kernel->flags = 0;
  kernel->pattern = POWERCCL_PATTERN_UNKNOWN;
  kernel->algorithm = kernel->protocol = kernel->channels = kernel->warps = 0;
  kernel->to = kernel->from = {};
  kernel->enqueued = false;
  return make_handle(HandleKind::kKernel, slot, serial);
}

Handle Runtime::kernel_task(Communicator* communicator, Handle handle, const TaskSeen& task) {
  LaunchedKernel* kernel = armed() ? lock_kernel(handle) : nullptr;
  if (kernel == nullptr) return 0;
  Handle call = task.call;
  if (!adapter_.sees_calls) {
    call = task.point_to_point ? point_to_point(communicator, kernel->group, task.send, task.operation)
                               : collective(communicator, kernel->group, task.operation);
  }
  // An adapter that sees calls asks for tasks together with their channels. So a reported task's channels will report
  // as well, whenever the library reads the wish.
  const bool asked = adapter_.sees_calls || selection_.asked();
  if (call & kCapturedBit) kernel->flags |= POWERCCL_FLAG_CAPTURED;
  uint8_t pattern = task.operation.pattern;
  if (task.point_to_point) {
    (task.send ? kernel->parts.sends : kernel->parts.receives) += 1;
    (task.send ? kernel->to : kernel->from).add(task.peer);
    (task.send ? kernel->parts.sent_bytes : kernel->parts.received_bytes) += task.operation.message_bytes;
    if (kernel->pattern == POWERCCL_PATTERN_UNKNOWN && !recall(call, &kernel->pattern, &kernel->bytes)) {
      kernel->pattern = POWERCCL_PATTERN_UNKNOWN;
    }
  } else {
    kernel->bytes += total_bytes(pattern, task.operation.message_bytes, communicator->nranks);
    if (kernel->pattern == POWERCCL_PATTERN_UNKNOWN) kernel->pattern = pattern;
  }
  if (kernel->tasks++ == 0) {
    kernel->call = serial_of(call);
    kernel->algorithm = task.algorithm;
    kernel->protocol = task.protocol;
  } else if (!task.point_to_point) {
    kernel->flags |= POWERCCL_FLAG_GROUPED;
  }
  if (task.channels > kernel->channels) kernel->channels = task.channels;
  if (task.warps > kernel->warps) kernel->warps = task.warps;
  // What a rank sends to itself need not pass a channel that reports.
  const bool to_itself = task.point_to_point && task.peer == kernel->communicator->rank;
  if (asked && !to_itself) kernel->expected += task.channels;
  kernel->lock.unlock();
  return asked ? retyped(handle, HandleKind::kTask) : 0;
}

void Runtime::kernel_enqueued(Handle handle) {
  LaunchedKernel* kernel = armed() ? lock_kernel(handle) : nullptr;
  if (kernel == nullptr) return;
  kernel->enqueued = true;
  if (kernel->group != 0) {
    group_ending(kernel->group);
    kernel->holds = kernel->communicator->held.exchange(0, std::memory_order_acq_rel);
    group_ends(kernel->group);
  }
  if (kernel->parts.sends + kernel->parts.receives > 0 && kernel->pattern == POWERCCL_PATTERN_UNKNOWN) {
    const Classified classified = classify(kernel->parts, static_cast<uint32_t>(kernel->communicator->nranks));
    kernel->pattern = classified.pattern;
    kernel->bytes = classified.bytes;
  }
  // The events may all have come already, or none will.
  if (kernel->stopped >= kernel->expected && kernel->stopped >= kernel->started) finish_kernel(kernel);
  kernel->lock.unlock();
}

Handle Runtime::channel_starts(Handle task, uint64_t gpu_ns) {
  LaunchedKernel* kernel = armed() ? lock_kernel(task) : nullptr;
  if (kernel == nullptr) return 0;
  const uint64_t now = monotonic_ns();
  kernel->communicator->gpu->clock.observe(gpu_ns, now);
  if (kernel->started++ == 0) {
    kernel->gpu_start_ns = gpu_ns;
    kernel->seen_start_ns = now;
    Gpu* gpu = kernel->communicator->gpu;
    if (gpu->clock_policy->started(kernel->call, gpu->clock.host_ns(gpu_ns, now))) gpu->actuator.look();
  } else if (gpu_ns < kernel->gpu_start_ns) {
    kernel->gpu_start_ns = gpu_ns;
  }
  kernel->lock.unlock();
  return retyped(task, HandleKind::kChannel);
}

void Runtime::channel_stops(Handle channel, uint64_t gpu_ns) {
  LaunchedKernel* kernel = armed() ? lock_kernel(channel) : nullptr;
  if (kernel == nullptr) return;
  const uint64_t now = monotonic_ns();
  kernel->communicator->gpu->clock.observe(gpu_ns, now);
  if (gpu_ns > kernel->gpu_stop_ns) kernel->gpu_stop_ns = gpu_ns;
  kernel->seen_stop_ns = now;
  ++kernel->stopped;
  if (kernel->stopped >= kernel->expected && kernel->stopped >= kernel->started && kernel->enqueued) {
    finish_kernel(kernel);
  }
  kernel->lock.unlock();
}

// Records the kernel as far as it was seen and frees its slot. The caller holds its lock, and keeps it.
void Runtime::finish_kernel(LaunchedKernel* kernel) {
  Communicator* communicator = kernel->communicator;
  Gpu* gpu = communicator->gpu;
  if (kernel->started > 0 && kernel->stopped > 0) {
    powerccl_trace_record record = new_record(POWERCCL_REC_KERNEL, communicator->index, kernel->flags);
    record.kernel.call_id = kernel->call;
    record.kernel.gpu_start_ns = kernel->gpu_start_ns;
    // NCCL has been seen to give stops before starts (NVIDIA/nccl#2221).
    record.kernel.gpu_stop_ns = kernel->gpu_stop_ns > kernel->gpu_start_ns ? kernel->gpu_stop_ns : kernel->gpu_start_ns;
    record.kernel.seen_start_ns = kernel->seen_start_ns;
    record.kernel.seen_stop_ns = kernel->seen_stop_ns;
    record.kernel.bytes = kernel->bytes;
    record.kernel.pattern = kernel->pattern;
    record.kernel.algorithm = kernel->algorithm;
    record.kernel.protocol = kernel->protocol;
    record.kernel.channels = kernel->channels;
    record.kernel.warps = kernel->warps;
    set_peers(&record, kernel->to, kernel->from);
    gpu->trace.append(record);
    const uint64_t stop_ns = gpu->clock.host_ns(record.kernel.gpu_stop_ns, kernel->seen_stop_ns);
    if (gpu->clock_policy->stopped(kernel->call, stop_ns)) gpu->actuator.look();
    // A fused kernel teaches nothing about its parts.
    if ((kernel->flags & POWERCCL_FLAG_GROUPED) == 0 && kernel->stopped >= kernel->expected) {
      selection_.answered(kernel->pattern, kernel->bytes, record.kernel.gpu_stop_ns - record.kernel.gpu_start_ns);
    }
  }
  if (kernel->holds > 0) gpu->per_call.release(kernel->holds, kernel->call);
  kernel->holds = 0;
  kernel->communicator = nullptr;
  kernel->opened_ns = UINT64_MAX;
  kernel->serial.store(0, std::memory_order_release);
}

// Ends the kernels of a communicator that goes (null: of any) and that began before then.
void Runtime::flush_kernels(Communicator* communicator, uint64_t opened_before_ns) {
  for (LaunchedKernel& kernel : kernels_) {
    if (kernel.serial.load(std::memory_order_acquire) == 0) continue;
    SpinGuard guard(kernel.lock);
    if (kernel.serial.load(std::memory_order_relaxed) == 0) continue;
    if (communicator != nullptr && kernel.communicator != communicator) continue;
    if (kernel.opened_ns < opened_before_ns) finish_kernel(&kernel);
  }
}

}  // namespace powerccl
