// SPDX-License-Identifier: Apache-2.0
// The profiler events of NCCL 2.28.9: which, when, in which order, from which thread.
//
// API events come from the calling thread: the group's (its first operation starts it), then the operation's. The mask
// is read once an operation, before its own API event but after it was decided whether the group's event is due.
// Launch, group and task events come from the launching thread, or for captured plans with kernel events from the
// graph's host node. Kernel-channel events come from the communicator's progress thread (progress.h).
#pragma once
#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

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
