// SPDX-License-Identifier: Apache-2.0
// Groups: ncclGroupStart/End of a thread, what they hold back until the outermost end, and how it is carried out.
#pragma once
#include <thread>
#include <vector>

#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

// A communicator to be initialised or split: what has to run when the group ends.
struct InitJob {
  ncclComm* comm = nullptr;    // the communicator that comes into being
  ncclComm** slot = nullptr;   // where the caller waits for it; null: it splits without a colour and gets none
  ncclComm* parent = nullptr;  // a split's
  Origin origin{};
};

// A group of non-blocking communicators, carried out by a thread of its own.
struct GroupJob {
  std::vector<InitJob> inits;
  std::vector<ncclComm*> comms;
  std::thread thread;
  std::once_flag joined;
  void join();
};

ncclResult_t group_start();
ncclResult_t group_end();
int group_depth();
// Notes a failure for the group's end, if one is open; returns it.
ncclResult_t group_error(ncclResult_t result);
// The communicator has something queued in this thread's group.
void group_joined(ncclComm* comm);
void group_init(const InitJob& job);
// Drops a communicator that is aborted or destroyed while queued.
void group_forget(ncclComm* comm);

// Launches what is queued on the communicator as one kernel.
ncclResult_t launch(ncclComm* comm);
void discard_queued(ncclComm* comm);

// Which algorithm, protocol and channels each queued collective gets: NCCL's variables, its idea of costs, a tuner.
// Before the communicator's constants are shown to a tuner.
TunerConstants default_constants();
// Of all collectives queued on the communicator. ncclInvalidUsage: nothing that the variables allow is available.
ncclResult_t choose_methods(ncclComm* comm);
// Names as profiler plugins receive them.
const char* algorithm_name(const Task& task);
const char* protocol_name(const Task& task);

// From a call of the API to tasks queued on its communicator.
struct Call {
  Func func;
  const char* name;
  const void* send_buffer;
  void* recv_buffer;  // of a send or receive: the buffer
  size_t count;
  ncclDataType_t type;
  int op;
  int root;  // root or peer
  ncclComm* comm;
  CUstream stream;
};

// Checks, queues, and launches unless a group is open: what every operation of the API is.
ncclResult_t enqueue(const Call& call);

size_t type_bytes(ncclDataType_t type);
// Channels that an operation with so much traffic gets: more as it grows, up to what the communicator has.
int channels_for(const ncclComm* comm, size_t traffic_bytes);

}  // namespace powerccl::emulated_nccl
