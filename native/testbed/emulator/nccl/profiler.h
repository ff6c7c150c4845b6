// SPDX-License-Identifier: Apache-2.0
// The profiler events of NCCL 2.28.9: which, when, in which order, from which thread.
//
// API events come from the calling thread: the group's (its first operation starts it), then the operation's. The mask
// is read once an operation, before its own API event but after it was decided whether the group's event is due.
// Launch, group and task events come from the launching thread, or for captured plans with kernel events from the
// graph's host node. Kernel-channel events come from the communicator's progress thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

// A communicator's progress thread: NCCL's proxy thread as far as users and plugins can tell.
//
// It waits for the server's messages about this rank. For kernels that started and stopped on the GPU, it raises
// kernel-channel events with the emulated globaltimer. For peers that are gone, it raises asynchronous errors.
class Progress {
 public:
  explicit Progress(ncclComm& comm);
  ~Progress();  // after leave(), or with the server gone
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The plan's tasks have their handles: their kernel events may come. Once for each replay of a captured plan.
  void expect(const Plan& plan);

 private:
  struct Part {  // a task's kernel events
    uint32_t task;
    void* parent;
    std::vector<void*> channels;  // handles, null where the plugin gave none
  };
  struct Run {  // of a plan
    std::vector<Part> parts;
    uint32_t last_task;
  };
  void work();
  void handle(const emulator::CommEvent& event);
  std::deque<Run>* runs_of(uint64_t plan);  // once there are any; null: no kernel expects them
  void started(Run& run, const emulator::CommEvent& event);
  void stopped(Run& run, const emulator::CommEvent& event);

  ncclComm& comm_;
  std::mutex mutex_;
  std::condition_variable expected_;
  std::unordered_map<uint64_t, std::deque<Run>> plans_;
  std::thread thread_;
};

// What NCCL keeps per thread about API events.
struct ApiState {
  enum class Group { kReset, kStarted, kStopped };
  int group_depth = 0;  // of the profiled group; 0: none is open
  uint64_t mask = 0;
  Group group = Group::kReset;
  void* group_handle = nullptr;
  void* p2p_handle = nullptr;
  void* coll_handle = nullptr;
};
ApiState& api_state();

const char* datatype_name(ncclDataType_t type);

void group_api_started(ncclComm* comm, bool captured, int depth);  // reads the mask
void group_api_start_stopped();
void group_api_end_started();
void group_api_stopped();

struct ApiCall {
  Func func;
  size_t count;
  ncclDataType_t type;
  int root;
  CUstream stream;
  bool captured;
};
void coll_api_started(ncclComm* comm, const ApiCall& call);
void coll_api_stopped();
void p2p_api_started(ncclComm* comm, const ApiCall& call);
void p2p_api_stopped();

bool wants_kernel_events(const Plan& plan);
void launch_started(Plan& plan, CUstream stream);
void launch_stopped(Plan& plan);
// A collective on copy engines (v6 and later): around what is put into the stream.
void copies_started(Plan& plan);
void copies_stopped(Plan& plan);
// Group and task events of a launched plan, and its tasks handed to the progress thread between start and stop.
void plan_posted(Plan& plan);

}  // namespace powerccl::emulated_nccl
