// SPDX-License-Identifier: Apache-2.0
// Where computation waited for communication, and when kernels ran that send no events: as the job's own streams tell.
#include "runtime/runtime.h"

namespace powerccl {

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
