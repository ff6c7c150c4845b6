// SPDX-License-Identifier: Apache-2.0
// The functions of emulator_client.h: what emulated NCCL needs beside the driver API.
#include <atomic>
#include <cerrno>
#include <cstring>

#include "emulator/cuda/state.h"

extern "C" {
#pragma GCC visibility push(default)
#include "emulator/client/emulator_client.h"
#pragma GCC visibility pop
}

using namespace powerccl::emulator;

namespace {

constexpr uint32_t kFirst = static_cast<uint32_t>(Message::kCollectiveFirst);
constexpr uint32_t kLast = static_cast<uint32_t>(Message::kCollectiveLast);

thread_local bool data_moves = true;
std::atomic<uint64_t> last_stop{0};

// The event's slot, once it has been recorded.
CUresult recorded(CUevent handle, const EventSlot** slot) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  const EventState* event = state.event_of(handle);
  if (event == nullptr || event->generation == 0) return CUDA_ERROR_INVALID_HANDLE;
  *slot = &state.connection->page()->events[event->slot];
  return (*slot)->generation.load(std::memory_order_acquire) < event->generation ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

bool tracked(const pwe_op* op) {
  return op != nullptr && op->generation != 0 && op->slot < kMaxOps && State::get().ready() == CUDA_SUCCESS;
}

}  // namespace

int pwe_abi(void) {
  return PWE_ABI;
}

int pwe_current_gpu(void) {
  const ContextState* context = current_context();
  return context != nullptr ? static_cast<int>(context->gpu) : -1;
}

int pwe_current_device(void) {
  const ContextState* context = current_context();
  return context != nullptr ? context->device : -1;
}

CUresult pwe_request(uint32_t type, const void* request, size_t request_bytes, void* reply, size_t reply_capacity,
                     size_t* reply_bytes, int32_t* error) {
  POWERCCL_READY(state);
  if (type < kFirst || type > kLast || request_bytes > kMaxPayloadBytes) return CUDA_ERROR_INVALID_VALUE;
  Header header{};
  header.type = type;
  Reply answer;
  if (!state.connection->request(&header, sizeof header, answer, request, request_bytes)) return CUDA_ERROR_UNKNOWN;
  const size_t copied = std::min(reply_capacity, answer.payload.size());
  if (copied != 0) memcpy(reply, answer.payload.data(), copied);
  if (reply_bytes != nullptr) *reply_bytes = answer.payload.size();
  if (error != nullptr) *error = answer.error;
  return CUDA_SUCCESS;
}

CUresult pwe_post(uint32_t type, const void* message, size_t bytes) {
  POWERCCL_READY(state);
  if (type < kFirst || type > kLast || bytes > kMaxPayloadBytes) return CUDA_ERROR_INVALID_VALUE;
  Header header{};
  header.type = type;
  return state.connection->post(&header, sizeof header, message, bytes) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult pwe_submit(CUstream handle, const void* payload, size_t bytes, pwe_op* op) {
  POWERCCL_READY(state);
  if (bytes > kMaxPayloadBytes) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (op != nullptr) *op = {kMaxOps, 0};
  Node node;
  node.type = Message::kCollective;
  const auto* data = static_cast<const std::byte*>(payload);
  node.payload.assign(data, data + bytes);
  if (stream->capture != nullptr) return state.enqueue(*stream, std::move(node));
  uint64_t generation = 0;
  const uint32_t slot = op != nullptr ? state.take_op(generation) : kMaxOps;
  const CUresult result = state.send(*stream, node, slot, generation);
  if (slot == kMaxOps) return result;
  if (result == CUDA_SUCCESS)
    *op = {slot, generation};
  else
    state.release_op(slot);
  return result;
}

CUresult pwe_call_beside(CUstream handle, CUhostFn function, void* data) {
  POWERCCL_READY(state);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return state.call_host(handle, [function, data] { function(data); }, false);
}

int pwe_is_capturing(CUstream handle, uint64_t* graph_id) {
  State& state = State::get();
  if (state.ready() != CUDA_SUCCESS) return -1;
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return -1;
  if (stream->capture == nullptr) return 0;
  if (graph_id != nullptr) *graph_id = stream->capture->id;
  return 1;
}

CUresult pwe_stop_time(uint64_t patience_ns, uint64_t* stop) {
  POWERCCL_READY(state);
  if (stop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StopTime message{};
  message.header.type = static_cast<uint32_t>(Message::kStopTime);
  message.stop = *stop = ++last_stop;
  message.patience_ns = patience_ns;
  Reply reply;
  if (!state.connection->request(&message.header, sizeof message, reply)) return CUDA_ERROR_UNKNOWN;
  return reply.error == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult pwe_start_time(uint64_t stop) {
  POWERCCL_READY(state);
  StartTime message{};
  message.header.type = static_cast<uint32_t>(Message::kStartTime);
  message.stop = stop;
  Reply reply;
  if (!state.connection->request(&message.header, sizeof message, reply)) return CUDA_ERROR_UNKNOWN;
  return reply.error == 0 ? CUDA_SUCCESS : reply.error == ETIME ? CUDA_ERROR_NOT_READY : CUDA_ERROR_INVALID_VALUE;
}

void pwe_submit_as_of(uint64_t stamp_ns) {
  stamp_as_of(stamp_ns);
}

void pwe_set_moves_data(int moves) {
  data_moves = moves != 0;
}

int pwe_moves_data(void) {
  return data_moves ? 1 : 0;
}

CUresult pwe_event_energy(CUevent event, double* energy_uj) {
  const EventSlot* slot = nullptr;
  const CUresult result = recorded(event, &slot);
  if (result == CUDA_SUCCESS) *energy_uj = slot->energy_uj.load(std::memory_order_relaxed);
  return result;
}

int pwe_op_wait(const pwe_op* op, int state, uint64_t timeout_ns) {
  if (!tracked(op)) return -1;
  const uint64_t now = monotonic_ns();
  const uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
  if (!State::get().connection->wait_op(op->slot, op->generation, static_cast<uint32_t>(state), deadline)) return -1;
  return static_cast<int>(State::get().connection->page()->ops[op->slot].state.load());
}

void pwe_op_release(const pwe_op* op) {
  if (!tracked(op)) return;
  State& state = State::get();
  const std::lock_guard lock(state.mutex);
  state.release_op(op->slot);
}

CUresult pwe_resolve(CUdeviceptr pointer, size_t bytes, pwe_memory* memory) {
  POWERCCL_READY(state);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const Allocation* allocation = state.allocation_at(static_cast<uintptr_t>(pointer));
  if (allocation == nullptr || allocation->id == 0 || allocation->on_host) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t offset = pointer - reinterpret_cast<uintptr_t>(allocation->data);
  if (bytes > allocation->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
  *memory = {allocation->id, offset, allocation->bytes - offset, static_cast<int>(allocation->gpu)};
  return CUDA_SUCCESS;
}
