// SPDX-License-Identifier: Apache-2.0
// The API's operations and groups.
#include "emulator/nccl/group.h"
#include "emulator/nccl/log.h"
#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/operations.h"

using namespace powerccl::emulated_nccl;

NCCL_API(ncclResult_t, AllReduce, const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
         ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kAllReduce, "AllReduce", send, receive, count, type, op, 0, comm, stream});
}

NCCL_API(ncclResult_t, Broadcast, const void* send, void* receive, size_t count, ncclDataType_t type, int root,
         ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kBroadcast, "Broadcast", send, receive, count, type, ncclSum, root, comm, stream});
}

NCCL_API(ncclResult_t, Bcast, void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
         CUstream stream) {
  return enqueue({Func::kBroadcast, "Broadcast", buffer, buffer, count, type, ncclSum, root, comm, stream});
}

NCCL_API(ncclResult_t, Reduce, const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
         int root, ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kReduce, "Reduce", send, receive, count, type, op, root, comm, stream});
}

NCCL_API(ncclResult_t, AllGather, const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
         CUstream stream) {
  return enqueue({Func::kAllGather, "AllGather", send, receive, count, type, ncclSum, 0, comm, stream});
}

NCCL_API(ncclResult_t, ReduceScatter, const void* send, void* receive, size_t count, ncclDataType_t type,
         ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kReduceScatter, "ReduceScatter", send, receive, count, type, op, 0, comm, stream});
}

NCCL_API(ncclResult_t, AlltoAll, const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
         CUstream stream) {
  return enqueue({Func::kAlltoAll, "AlltoAll", send, receive, count, type, ncclSum, 0, comm, stream});
}

NCCL_API(ncclResult_t, Gather, const void* send, void* receive, size_t count, ncclDataType_t type, int root,
         ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kGather, "Gather", send, receive, count, type, ncclSum, root, comm, stream});
}

NCCL_API(ncclResult_t, Scatter, const void* send, void* receive, size_t count, ncclDataType_t type, int root,
         ncclComm_t comm, CUstream stream) {
  return enqueue({Func::kScatter, "Scatter", send, receive, count, type, ncclSum, root, comm, stream});
}

NCCL_API(ncclResult_t, Send, const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
         CUstream stream) {
  return enqueue({Func::kSend, "Send", nullptr, const_cast<void*>(buffer), count, type, ncclSum, peer, comm, stream});
}

NCCL_API(ncclResult_t, Recv, void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
         CUstream stream) {
  return enqueue({Func::kRecv, "Recv", nullptr, buffer, count, type, ncclSum, peer, comm, stream});
}

NCCL_API(ncclResult_t, GroupStart, void) {
  return group_start();
}

NCCL_API(ncclResult_t, GroupEnd, void) {
  return group_end();
}

// Estimates come from NCCL's cost model, which the emulation does not have; the group is dropped.
NCCL_API(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t*) {
  warn("ncclGroupSimulateEnd is not emulated");
  group_error(ncclInvalidUsage);
  return group_end();
}
