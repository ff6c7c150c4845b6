// SPDX-License-Identifier: Apache-2.0
#include "emulator/cuda/state.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "emulator/client/gpu_ids.h"

namespace powerccl::emulator {
namespace {

constexpr uint64_t kLivenessNs = 100'000'000;

// The GPU whose UUID, or whose slice's, begins so; `none` if there is no such or more than one.
uint32_t named_so(const BoardPage& board, const std::string& beginning, uint32_t none) {
  uint32_t named = none;
  for (uint32_t i = 0; i < board.gpus; ++i) {
    const std::string uuid = in_mig_mode(i) ? slice_uuid(board.gpu[i].uuid) : board.gpu[i].uuid;
    if (uuid.compare(0, beginning.size(), beginning) != 0) continue;
    if (named != none) return none;
    named = i;
  }
  return named;
}

// "0,2", "GPU-uuid,..." or "MIG-uuid" as CUDA_VISIBLE_DEVICES has it, UUIDs also by their beginnings: what follows the
// first entry that is not a device is ignored.
std::vector<uint32_t> visible_devices(const BoardPage& board) {
  std::vector<uint32_t> devices;
  const char* setting = getenv("CUDA_VISIBLE_DEVICES");
  if (setting == nullptr) {
    for (uint32_t i = 0; i < board.gpus; ++i) devices.push_back(i);
    return devices;
  }
  std::string text = setting;
  size_t from = 0;
  while (from <= text.size()) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string word = text.substr(from, comma - from);
    from = comma + 1;
    uint32_t gpu = board.gpus;
    char* end = nullptr;
    const unsigned long number = strtoul(word.c_str(), &end, 10);
    if (!word.empty() && *end == '\0') gpu = number < board.gpus ? static_cast<uint32_t>(number) : board.gpus;
    if (word.rfind("GPU-", 0) == 0 || word.rfind("MIG-", 0) == 0) gpu = named_so(board, word, board.gpus);
    if (gpu == board.gpus) break;
    devices.push_back(gpu);
  }
  return devices;
}

void fill_free(std::vector<uint32_t>& slots, uint32_t count) {
  for (uint32_t i = count; i > 0; --i) slots.push_back(i - 1);
}

}  // namespace

State& State::get() {
  static State* state = new State;  // never destroyed: other threads may still be in calls while the process ends
  return *state;
}

CUresult State::initialise() {
  const std::lock_guard lock(mutex);
  if (connection != nullptr) return ready();
  auto opened = Connection::open(Role::kCuda, "libcuda");
  if (opened == nullptr) return CUDA_ERROR_NO_DEVICE;
  devices = visible_devices(opened->board());
  if (devices.empty()) return CUDA_ERROR_NO_DEVICE;
  primaries.assign(devices.size(), nullptr);
  submitted_.assign(kMaxStreams, 0);
  event_generations_.assign(kMaxEvents, 0);
  op_generations_.assign(kMaxOps, 0);
  fill_free(free_streams_, kMaxStreams);
  fill_free(free_events_, kMaxEvents);
  fill_free(free_ops_, kMaxOps);
  const char* move = getenv("POWERCCL_EMULATOR_MOVE_DATA");
  move_data = move == nullptr || strcmp(move, "0") != 0;
  connection = std::move(opened);
  return CUDA_SUCCESS;
}

CUresult State::ready() const {
  if (connection == nullptr || connection->pid() != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

bool State::still_alive() {
  if (connection->lost()) return false;
  const uint64_t now = monotonic_ns();
  if (now - checked_ns_ < kLivenessNs) return true;
  checked_ns_ = now;
  return connection->alive();
}

CUresult State::wait(uint32_t slot, uint64_t sequence) {
  if (!connection->wait_stream(slot, sequence)) return CUDA_ERROR_UNKNOWN;
  see_callbacks();
  return CUDA_SUCCESS;
}

StreamState* State::new_stream(ContextState& context, unsigned flags) {
  for (size_t i = 0; i < draining_streams_.size();) {
    const uint32_t slot = draining_streams_[i];
    if (pending(slot)) {
      ++i;
      continue;
    }
    free_streams_.push_back(slot);
    draining_streams_[i] = draining_streams_.back();
    draining_streams_.pop_back();
  }
  if (free_streams_.empty()) return nullptr;
  auto* stream = new StreamState{&context, free_streams_.back(), flags};
  free_streams_.pop_back();
  streams.insert(stream);
  context.streams.insert(stream);
  return stream;
}

void State::destroy_stream(StreamState* stream) {
  StreamHeader message{};
  message.gpu = stream->context->gpu;
  message.stream = stream->slot;
  message.sequence = submitted_[stream->slot];
  message.header.type = static_cast<uint32_t>(Message::kStreamDestroy);
  connection->post(&message.header, sizeof message);
  draining_streams_.push_back(stream->slot);
  stream->context->streams.erase(stream);
  streams.erase(stream);
  delete stream;
}

EventState* State::new_event(unsigned flags) {
  if (free_events_.empty()) return nullptr;
  auto* event = new EventState{free_events_.back(), flags};
  free_events_.pop_back();
  events.insert(event);
  return event;
}

void State::destroy_event(EventState* event) {
  free_events_.insert(free_events_.begin(), event->slot);  // last in line: so that a late record hits no event in use
  events.erase(event);
  delete event;
}

uint32_t State::take_op(uint64_t& generation) {
  if (free_ops_.empty()) return kMaxOps;
  const uint32_t slot = free_ops_.back();
  free_ops_.pop_back();
  generation = ++op_generations_[slot];
  OpSlot& shared = connection->page()->ops[slot];
  shared.state.store(static_cast<uint32_t>(OpState::kPending));
  shared.generation.store(generation);
  return slot;
}

void State::release_op(uint32_t slot) {
  free_ops_.push_back(slot);
}

const Allocation* State::allocation_at(uintptr_t address) const {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  --after;
  return address < after->first + after->second.bytes ? &after->second : nullptr;
}

EventState* State::event_of(CUevent handle) {
  auto* event = reinterpret_cast<EventState*>(handle);
  return events.count(event) != 0 ? event : nullptr;
}

CUresult State::submit(StreamState& stream, StreamHeader& message, size_t bytes, Message type, const void* payload,
                       size_t payload_bytes) {
  message.header.type = static_cast<uint32_t>(type);
  message.gpu = stream.context->gpu;
  message.stream = stream.slot;
  message.sequence = submitted_[stream.slot] + 1;
  if (!connection->post(&message.header, bytes, payload, payload_bytes)) return CUDA_ERROR_UNKNOWN;
  ++submitted_[stream.slot];
  return CUDA_SUCCESS;
}

CUresult State::wait_for(StreamState& stream, uint32_t on_slot, uint64_t on_sequence) {
  if (on_slot == stream.slot || connection->page()->streams[on_slot].completed.load() >= on_sequence)
    return CUDA_SUCCESS;
  Wait message{};
  message.on_stream = on_slot;
  message.on_sequence = on_sequence;
  return submit(stream, message.to, sizeof message, Message::kWait);
}

// The legacy default stream waits for all blocking streams of its context, and they for it.
CUresult State::order_after_legacy(StreamState& stream) {
  ContextState& context = *stream.context;
  if ((stream.flags & CU_STREAM_NON_BLOCKING) != 0) return CUDA_SUCCESS;
  if (&stream != context.legacy) return wait_for(stream, context.legacy->slot, submitted_[context.legacy->slot]);
  for (StreamState* other : context.streams) {
    if (other == &stream || (other->flags & CU_STREAM_NON_BLOCKING) != 0) continue;
    const CUresult result = wait_for(stream, other->slot, submitted_[other->slot]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult State::enqueue(StreamState& stream, Node node) {
  if (stream.capture == nullptr) return send(stream, node);
  stream.capture->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

CUresult State::call_host(CUstream handle, std::function<void()> run, bool timed) {
  const std::lock_guard lock(mutex);
  StreamState* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Node node;
  node.type = Message::kCallback;
  node.is_copy = !timed;  // of no bytes
  node.run = std::move(run);
  return enqueue(*stream, std::move(node));
}

CUresult State::send(StreamState& stream, Node& node, uint32_t op, uint64_t op_generation) {
  CUresult result = order_after_legacy(stream);
  if (result != CUDA_SUCCESS) return result;
  switch (node.type) {
    case Message::kKernel: {
      Kernel message{};
      message.declared_ns = node.declared_ns;
      return submit(stream, message.to, sizeof message, node.type);
    }
    case Message::kWriteValue: {
      WriteValue message{};
      message.allocation = node.allocation;
      message.offset = node.offset;
      message.value = node.value;
      return submit(stream, message.to, sizeof message, node.type);
    }
    case Message::kCollective: {
      Collective message{};
      message.op = op;
      message.generation = op_generation;
      message.payload_bytes = static_cast<uint32_t>(node.payload.size());
      return submit(stream, message.to, sizeof message, node.type, node.payload.data(), node.payload.size());
    }
    default: {
      if (!start_callbacks()) return CUDA_ERROR_UNKNOWN;
      Callback message{};
      message.bytes = node.bytes;
      message.is_copy = node.is_copy ? 1 : 0;
      message.to_host = node.to_host ? 1 : 0;
      {
        const std::lock_guard lock(callbacks_mutex_);
        message.callback = next_callback_++;
        callbacks_[message.callback] = node.run;  // copied: a graph runs it again
      }
      return submit(stream, message.to, sizeof message, Message::kCallback);
    }
  }
}

CUresult State::record(StreamState& stream, EventState& event) {
  CUresult result = order_after_legacy(stream);
  if (result != CUDA_SUCCESS) return result;
  EventRecord message{};
  message.event = event.slot;
  message.generation = event_generations_[event.slot] + 1;
  result = submit(stream, message.to, sizeof message, Message::kEventRecord);
  if (result != CUDA_SUCCESS) return result;
  event.generation = ++event_generations_[event.slot];
  event.stream = stream.slot;
  event.sequence = submitted_[stream.slot];
  event.captured = nullptr;
  return CUDA_SUCCESS;
}

bool State::start_callbacks() {
  if (callback_connection_ != nullptr) return true;
  callback_connection_ = Connection::open(Role::kCallback, "libcuda", connection->client());
  if (callback_connection_ == nullptr) return false;
  sigset_t all, before;  // the program's signals are not for this thread
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { serve_callbacks(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

void State::serve_callbacks() {
  RunCallback order{};
  while (callback_connection_->receive(&order, sizeof order)) {
    std::function<void()> run;
    {
      const std::lock_guard lock(callbacks_mutex_);
      const auto entry = callbacks_.find(order.callback);
      if (entry != callbacks_.end()) {
        run = std::move(entry->second);
        callbacks_.erase(entry);
      }
    }
    if (run) run();
    callbacks_run_.fetch_add(1, std::memory_order_release);
    CallbackDone done{};
    done.header.type = static_cast<uint32_t>(Message::kCallbackDone);
    done.stream = order.stream;
    done.sequence = order.sequence;
    if (!callback_connection_->post(&done.header, sizeof done)) return;
  }
}

}  // namespace powerccl::emulator
