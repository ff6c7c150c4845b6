// SPDX-License-Identifier: Apache-2.0
// The API's questions, memory and reduction operators.
#include <bit>
#include <cstring>

#include "emulator/nccl/group.h"
#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/settings.h"

using namespace powerccl::emulated_nccl;

namespace {

template <typename T>
ncclResult_t answer(const ncclComm* comm, const char* function, T* into, T (*value)(const ncclComm*)) {
  if (const ncclResult_t result = check_comm(comm, function); result != ncclSuccess) return result;
  if (!into) return refuse(ncclInvalidArgument, "%s : the result's address is NULL", function);
  if (comm->async_error == ncclInProgress)
    return refuse(ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  *into = value(comm);
  return ncclSuccess;
}

}  // namespace

NCCL_API(ncclResult_t, GetVersion, int* version) {
  if (!version) return ncclInvalidArgument;
  *version = nccl_version();
  return ncclSuccess;
}

NCCL_API(const char*, GetErrorString, ncclResult_t code) {
  constexpr const char* kStrings[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the PowerCCL developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  if (code >= ncclSuccess && code <= ncclInProgress) return kStrings[code];
  return "unknown result code";
}

NCCL_API(const char*, GetLastError, ncclComm_t) {
  return last_error();
}

NCCL_API(void, ResetDebugInit, void) {}

NCCL_API(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* async_error) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommGetAsyncError"); result != ncclSuccess) return result;
  if (!async_error) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError : asyncError argument is NULL");
  *async_error = static_cast<ncclResult_t>(comm->async_error.load());
  if (*async_error != ncclInProgress && comm->job) {
    comm->job->join();
    comm->job.reset();
  }
  return ncclSuccess;
}

NCCL_API(ncclResult_t, CommCount, const ncclComm_t comm, int* count) {
  return answer<int>(comm, "ncclCommCount", count, [](const ncclComm* c) { return c->ranks; });
}
NCCL_API(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device) {
  return answer<int>(comm, "ncclCommCuDevice", device, [](const ncclComm* c) { return c->device; });
}
NCCL_API(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank) {
  return answer<int>(comm, "ncclCommUserRank", rank, [](const ncclComm* c) { return c->rank; });
}

NCCL_API(ncclResult_t, MemAlloc, void** pointer, size_t bytes) {
  const Driver* loaded = driver();
  if (!loaded) return ncclSystemError;
  if (!pointer || bytes == 0) return ncclInvalidArgument;
  CUdeviceptr address = 0;
  if (loaded->cuMemAlloc(&address, bytes) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  *pointer = std::bit_cast<void*>(address);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, MemFree, void* pointer) {
  const Driver* loaded = driver();
  if (!loaded) return ncclSystemError;
  return loaded->cuMemFree(reinterpret_cast<CUdeviceptr>(pointer)) == CUDA_SUCCESS ? ncclSuccess
                                                                                   : ncclUnhandledCudaError;
}

// Registration makes real transfers faster; here there is nothing to register.
NCCL_API(ncclResult_t, CommRegister, const ncclComm_t comm, void* buffer, size_t, void** handle) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommRegister"); result != ncclSuccess) return result;
  if (handle) *handle = buffer;
  return ncclSuccess;
}
NCCL_API(ncclResult_t, CommDeregister, const ncclComm_t comm, void*) {
  return check_comm(comm, "ncclCommDeregister");
}

// Other windows than symmetric ones change nothing here: success, and no window.
NCCL_API(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* window,
         int flags) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommWindowRegister"); result != ncclSuccess) return result;
  if (!window) return ncclInvalidArgument;
  *window = nullptr;
  if ((flags & kWindowSymmetric) == 0) return ncclSuccess;
  const std::lock_guard lock(comm->windows_mutex);
  comm->windows.push_back(std::make_unique<ncclWindow_vidmem>(static_cast<const char*>(buffer), bytes));
  *window = comm->windows.back().get();
  return ncclSuccess;
}
NCCL_API(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t window) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommWindowDeregister"); result != ncclSuccess) return result;
  const std::lock_guard lock(comm->windows_mutex);
  std::erase_if(comm->windows, [window](const auto& each) { return each.get() == window; });
  return ncclSuccess;
}

NCCL_API(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t type,
         ncclScalarResidence_t residence, ncclComm_t comm) {
  if (const ncclResult_t result = check_comm(comm, "ncclRedOpCreatePreMulSum"); result != ncclSuccess) return result;
  if (const ncclResult_t result = ensure_ready(comm); result != ncclSuccess) return result;
  if (!op || !scalar || type < 0 || type >= ncclNumTypes)
    return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid type %d, or an argument is NULL", type);
  UserReduction reduction;
  reduction.live = true;
  reduction.type = type;
  reduction.on_device = residence == ncclScalarDevice;
  if (reduction.on_device)
    reduction.bits = reinterpret_cast<uint64_t>(scalar);
  else
    memcpy(&reduction.bits, scalar, type_bytes(type));
  std::lock_guard lock(comm->reductions_mutex);
  size_t index = 0;
  while (index < comm->reductions.size() && comm->reductions[index].live) ++index;
  if (index == comm->reductions.size()) comm->reductions.emplace_back();
  comm->reductions[index] = reduction;
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(index));
  return ncclSuccess;
}

NCCL_API(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  if (op >= 0 && op < ncclNumOps) return refuse(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin.");
  if (const ncclResult_t result = check_comm(comm, "ncclRedOpDestroy"); result != ncclSuccess) return result;
  std::lock_guard lock(comm->reductions_mutex);
  const auto index = static_cast<size_t>(op - ncclNumOps);
  if (op < 0 || index >= comm->reductions.size() || !comm->reductions[index].live)
    return refuse(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator.");
  comm->reductions[index].live = false;
  return ncclSuccess;
}

// The API's operations and groups.

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
