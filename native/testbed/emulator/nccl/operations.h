// SPDX-License-Identifier: Apache-2.0
// From a call of the API to tasks queued on its communicator.
#pragma once
#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

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
