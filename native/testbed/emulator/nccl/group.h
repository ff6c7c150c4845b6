// SPDX-License-Identifier: Apache-2.0
// Groups: ncclGroupStart/End of a thread, what they hold back until the outermost end, and how it is carried out.
#pragma once
#include <functional>
#include <memory>
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

}  // namespace powerccl::emulated_nccl
