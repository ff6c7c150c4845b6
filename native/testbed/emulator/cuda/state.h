// SPDX-License-Identifier: Apache-2.0
// What the emulated driver keeps in a process. One mutex guards all of it: calls are short, and wait without it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cuda.h"
#include "emulator/client/connection.h"

#define PWE_EXPORT extern "C" __attribute__((visibility("default")))

namespace powerccl::emulator {

struct ContextState;
struct GraphState;

// One thing in a stream, not yet sent: sent immediately, or at each launch of a graph.
struct Node {
  Message type = Message::kKernel;
  uint64_t declared_ns = 0;  // kKernel
  uint64_t bytes = 0;        // kCallback: a copy's size
  bool is_copy = false, to_host = false;
  uint64_t allocation = 0, offset = 0;  // kWriteValue
  uint32_t value = 0;
  std::function<void()> run;       // kCallback
  std::vector<std::byte> payload;  // kCollective
};

struct StreamState {
  ContextState* context;
  uint32_t slot;
  unsigned flags;  // CUstream_flags
  GraphState* capture = nullptr;
  bool capture_origin = false;
};

struct EventState {
  uint32_t slot;
  unsigned flags;           // CUevent_flags
  uint64_t generation = 0;  // of the last record; 0: never
  uint32_t stream = 0;      // slot it was recorded in
  uint64_t sequence = 0;
  GraphState* captured = nullptr;
};

struct ContextState {
  int device;
  uint32_t gpu;
  bool primary;
  unsigned flags = 0;
  int references = 0;
  StreamState* legacy = nullptr;
  std::unordered_set<StreamState*> streams{};  // the legacy one included
};

struct GraphState {
  uint64_t id;
  std::vector<Node> nodes;
  std::vector<StreamState*> capturing;
};

struct Function {
  std::string name;
  std::vector<size_t> parameter_bytes;
  int declared_ns_index = -1;
};

struct Module {
  std::map<std::string, Function> functions;
};

struct Allocation {
  uint64_t id;  // 0: registered host memory, unknown to the server
  std::byte* data;
  size_t bytes;
  bool on_host;
  uint32_t gpu;
};

class State {
 public:
  static State& get();

  std::mutex mutex;
  std::unique_ptr<Connection> connection;  // set once by initialise()
  std::vector<uint32_t> devices;           // CUDA ordinal to the server's GPU
  bool move_data = true;
  std::vector<ContextState*> primaries;  // by device; null: not up
  std::unordered_set<ContextState*> contexts;
  std::unordered_set<StreamState*> streams;
  std::unordered_set<EventState*> events;
  std::unordered_set<GraphState*> graphs;  // graphs and executables alike
  std::unordered_set<Module*> modules;
  std::map<uintptr_t, Allocation> allocations;
  uint64_t next_allocation = 1, next_graph = 1;

  CUresult initialise();
  // CUDA_SUCCESS, or why no call can work: not initialised, forked, or the server is gone.
  CUresult ready() const;

  // The stream behind a handle (NULL and the two constants included); null: invalid. With the mutex held.
  StreamState* stream_of(CUstream handle);
  EventState* event_of(CUevent handle);
  StreamState* new_stream(ContextState& context, unsigned flags);
  void destroy_stream(StreamState* stream);
  EventState* new_event(unsigned flags);
  void destroy_event(EventState* event);
  // In the stream's order, or into the graph that it is captured into. With the mutex held.
  CUresult enqueue(StreamState& stream, Node node);
  // Calls the host once the stream has come so far. `timed`: it takes the time of a host function, else none. Takes the
  // mutex.
  CUresult call_host(CUstream handle, std::function<void()> run, bool timed);
  CUresult send(StreamState& stream, Node& node, uint32_t op = kMaxOps, uint64_t op_generation = 0);
  CUresult submit(StreamState& stream, StreamHeader& message, size_t bytes, Message type, const void* payload = nullptr,
                  size_t payload_bytes = 0);
  CUresult record(StreamState& stream, EventState& event);
  CUresult wait_for(StreamState& stream, uint32_t on_slot, uint64_t on_sequence);
  uint64_t submitted(uint32_t slot) const { return submitted_[slot]; }
  bool pending(uint32_t slot) const { return connection->page()->streams[slot].completed.load() < submitted_[slot]; }
  // Looks at the server now and then; for calls that poll. False: it is gone.
  bool still_alive();
  // Sleeps until a point of a stream, without the mutex.
  CUresult wait(uint32_t slot, uint64_t sequence);

  // Behind every answer that a stream is through: what callbacks wrote before is seen from here on. Their thread and
  // this one are ordered by the server, which compilers and thread sanitizers do not know.
  void see_callbacks() const { callbacks_run_.load(std::memory_order_acquire); }

  // Slots for operations of emulated NCCL. kMaxOps: none free.
  uint32_t take_op(uint64_t& generation);
  void release_op(uint32_t slot);

  const Allocation* allocation_at(uintptr_t address) const;

 private:
  State() = default;
  CUresult order_after_legacy(StreamState& stream);
  bool start_callbacks();
  void serve_callbacks();

  std::vector<uint64_t> submitted_;  // by stream slot
  std::vector<uint32_t> free_streams_;
  std::vector<uint32_t> draining_streams_;   // destroyed, perhaps not through
  std::vector<uint64_t> event_generations_;  // by event slot
  std::vector<uint32_t> free_events_;
  std::vector<uint64_t> op_generations_;
  std::vector<uint32_t> free_ops_;
  uint64_t checked_ns_ = 0;

  std::unique_ptr<Connection> callback_connection_;
  std::mutex callbacks_mutex_;
  std::unordered_map<uint64_t, std::function<void()>> callbacks_;
  uint64_t next_callback_ = 1;
  std::atomic<uint64_t> callbacks_run_{0};
};

// What a call begins with: the process's state, or the call's end where none can work.
// NOLINTBEGIN(bugprone-macro-parentheses): it declares the name
#define POWERCCL_READY(state)  \
  State& state = State::get(); \
  if (const CUresult ready_result = state.ready(); ready_result != CUDA_SUCCESS) return ready_result
// NOLINTEND(bugprone-macro-parentheses)

// The calling thread's current context, or null.
ContextState* current_context();
std::vector<ContextState*>& context_stack();

// PTX into functions and their parameters; false: not PTX text.
bool parse_ptx(const char* text, Module& module);

}  // namespace powerccl::emulator
