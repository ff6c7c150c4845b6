// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "emulator/cuda/state.h"

namespace powerccl::emulator {

StreamState* State::stream_of(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    ContextState* context = current_context();
    return context != nullptr && contexts.count(context) != 0 ? context->legacy : nullptr;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    thread_local std::map<ContextState*, StreamState*> own;
    ContextState* context = current_context();
    if (context == nullptr || contexts.count(context) == 0) return nullptr;
    StreamState*& stream = own[context];
    if (stream == nullptr || streams.count(stream) == 0) stream = new_stream(*context, 0);
    return stream;
  }
  auto* stream = reinterpret_cast<StreamState*>(handle);
  return streams.count(stream) != 0 ? stream : nullptr;
}

namespace {

CUresult create(CUstream* handle, unsigned flags) {
  POWERCCL_READY(state);
  if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  ContextState* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  StreamState* stream = state.new_stream(*context, flags);
  if (stream == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  POWERCCL_READY(state);
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const EventState* start = state.event_of(start_handle);
  const EventState* end = state.event_of(end_handle);
  if (start == nullptr || end == nullptr || start->generation == 0 || end->generation == 0)
    return CUDA_ERROR_INVALID_HANDLE;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  const EventSlot& first = state.connection->page()->events[start->slot];
  const EventSlot& last = state.connection->page()->events[end->slot];
  if (first.generation.load() < start->generation || last.generation.load() < end->generation)
    return state.still_alive() ? CUDA_ERROR_NOT_READY : CUDA_ERROR_UNKNOWN;
  *milliseconds =
      static_cast<float>(static_cast<double>(static_cast<int64_t>(last.time_ns.load() - first.time_ns.load())) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream_handle, CUdeviceptr address, uint32_t value) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(stream_handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Allocation* allocation = state.allocation_at(static_cast<uintptr_t>(address));
  if (allocation == nullptr || address % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
  Node node;
  if (allocation->id != 0) {
    node.type = Message::kWriteValue;
    node.allocation = allocation->id;
    node.offset = address - reinterpret_cast<uintptr_t>(allocation->data);
    node.value = value;
  } else {  // registered memory is this process's alone
    node.type = Message::kCallback;
    node.is_copy = true;
    auto* target = std::bit_cast<uint32_t*>(address);
    node.run = [target, value] { __atomic_store_n(target, value, __ATOMIC_RELEASE); };
  }
  return state.enqueue(*stream, std::move(node));
}

}  // namespace
}  // namespace powerccl::emulator

using namespace powerccl::emulator;

PWE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return create(stream, flags);
}

PWE_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return create(stream, flags);
}

PWE_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  auto* stream = reinterpret_cast<StreamState*>(handle);
  if (state.streams.count(stream) == 0 || stream == stream->context->legacy) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  state.destroy_stream(stream);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamQuery(CUstream handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (state.pending(stream->slot)) return state.still_alive() ? CUDA_ERROR_NOT_READY : CUDA_ERROR_UNKNOWN;
  state.see_callbacks();
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  POWERCCL_READY(state);
  uint32_t slot;
  uint64_t sequence;
  {
    const std::lock_guard lock(state.mutex);
    const StreamState* stream = state.stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    slot = stream->slot;
    sequence = state.submitted(slot);
  }
  return state.wait(slot, sequence);
}

PWE_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(handle);
  const EventState* event = state.event_of(event_handle);
  if (stream == nullptr || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->captured != nullptr) {
    // The stream joins the capture that the event belongs to. Nodes run in the order they were captured in, which keeps
    // every dependency and may add some.
    if (stream->capture != nullptr)
      return stream->capture == event->captured ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (state.graphs.count(event->captured) == 0) return CUDA_ERROR_INVALID_VALUE;
    stream->capture = event->captured;
    stream->capture->capturing.push_back(stream);
    return CUDA_SUCCESS;
  }
  if (stream->capture != nullptr) return event->generation == 0 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (event->generation == 0) return CUDA_SUCCESS;
  return state.wait_for(*stream, event->stream, event->sequence);
}

PWE_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamGetPriority(CUstream, int* priority) {
  *priority = 0;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *id = stream->slot;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  POWERCCL_READY(state);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return state.call_host(handle, [function, data] { function(data); }, true);
}

PWE_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  POWERCCL_READY(state);
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Node node;
  node.type = Message::kCallback;
  node.run = [callback, handle, data] { callback(handle, CUDA_SUCCESS, data); };
  return state.enqueue(*stream, std::move(node));
}

PWE_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return write_value(stream, address, value);
}

#undef cuStreamWriteValue32
PWE_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return write_value(stream, address, value);
}

PWE_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                                          unsigned) {
  for (unsigned i = 0; i < count; ++i) {
    if (operations[i].operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) return CUDA_ERROR_NOT_SUPPORTED;
    const CUresult result = write_value(stream, operations[i].writeValue.address, operations[i].writeValue.value);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  POWERCCL_READY(state);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(state.mutex);
  EventState* event = state.new_event(flags);
  if (event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  EventState* event = state.event_of(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  state.destroy_event(event);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuEventRecord(CUevent event_handle, CUstream stream_handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  EventState* event = state.event_of(event_handle);
  StreamState* stream = state.stream_of(stream_handle);
  if (event == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    event->captured = stream->capture;
    return CUDA_SUCCESS;
  }
  return state.record(*stream, *event);
}

PWE_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
}

PWE_EXPORT CUresult cuEventQuery(CUevent handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  const EventState* event = state.event_of(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (state.connection->page()->events[event->slot].generation.load() < event->generation)
    return state.still_alive() ? CUDA_ERROR_NOT_READY : CUDA_ERROR_UNKNOWN;
  state.see_callbacks();
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  POWERCCL_READY(state);
  uint32_t slot;
  uint64_t sequence;
  {
    const std::lock_guard lock(state.mutex);
    const EventState* event = state.event_of(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->generation == 0) return CUDA_SUCCESS;
    slot = event->stream;
    sequence = event->sequence;
  }
  return state.wait(slot, sequence);
}

PWE_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

#undef cuEventElapsedTime
PWE_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
