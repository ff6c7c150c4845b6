// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <bit>

#include "emulator/nccl/group.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/profiler.h"
#include "emulator/nccl/settings.h"
#include "physics/collective_types.h"

namespace powerccl::emulated_nccl {
namespace {

using emulator::BufferRef;
using emulator::CollectiveTask;
using emulator::kNoAllocation;
using emulator::TaskKind;

// abi/trace.h's numbers of the patterns, as platform files know them.
constexpr uint8_t kScatterPattern = 6, kGatherPattern = 7, kAllToAllPattern = 8;

ncclResult_t resolve(ncclComm* comm, const char* call, const void* pointer, size_t bytes, BufferRef& ref) {
  pwe_memory memory{};
  const CUresult resolved = comm->driver->pwe_resolve(reinterpret_cast<CUdeviceptr>(pointer), bytes, &memory);
  if (resolved != CUDA_SUCCESS)
    return refuse(ncclInvalidArgument, "%s : %p with %zu bytes behind it is not in device memory", call, pointer,
                  bytes);
  ref = {memory.allocation, memory.offset};
  return ncclSuccess;
}

ncclResult_t check_arguments(const Call& call) {
  if (call.root < 0 || call.root >= call.comm->ranks)
    return refuse(ncclInvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)", call.name, call.root,
                  call.comm->ranks);
  if (call.type < 0 || call.type >= ncclNumTypes)
    return refuse(ncclInvalidArgument, "%s : invalid type %d", call.name, call.type);
  if (call.op < 0) return refuse(ncclInvalidArgument, "%s : invalid reduction operation %d", call.name, call.op);
  if (call.op >= ncclNumOps) {
    std::lock_guard lock(call.comm->reductions_mutex);
    const auto index = static_cast<size_t>(call.op - ncclNumOps);
    if (index >= call.comm->reductions.size() || !call.comm->reductions[index].live)
      return refuse(ncclInvalidArgument, "%s : reduction operation %d unknown to this communicator", call.name,
                    call.op);
  }
  return ncclSuccess;
}

bool reduces(Func func) {
  return func == Func::kAllReduce || func == Func::kReduce || func == Func::kReduceScatter;
}

ncclResult_t set_reduction(const Call& call, CollectiveTask& wire) {
  wire.scalar = {kNoAllocation, 0};
  if (!reduces(call.func)) return ncclSuccess;
  if (call.type == ncclFloat8e4m3 || call.type == ncclFloat8e5m2) {
    warn("FP8 reduction support begins with sm90 capable devices; the emulation has none.");
    return ncclInvalidArgument;
  }
  if (call.op < ncclNumOps) {
    wire.reduction = static_cast<uint8_t>(call.op);
    return ncclSuccess;
  }
  std::lock_guard lock(call.comm->reductions_mutex);
  const UserReduction& user = call.comm->reductions[static_cast<size_t>(call.op - ncclNumOps)];
  if (user.type != call.type)
    return refuse(ncclInvalidArgument,
                  "Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation");
  wire.reduction = static_cast<uint8_t>(emulator::Reduction::kPreMulSum);
  if (!user.on_device) {
    wire.scalar.offset = user.bits;
    return ncclSuccess;
  }
  return resolve(call.comm, call.name, std::bit_cast<const void*>(user.bits), type_bytes(call.type), wire.scalar);
}

TaskKind wire_kind(Func func) {
  switch (func) {
    case Func::kBroadcast:
      return TaskKind::kBroadcast;
    case Func::kReduce:
      return TaskKind::kReduce;
    case Func::kAllGather:
      return TaskKind::kAllGather;
    case Func::kReduceScatter:
      return TaskKind::kReduceScatter;
    case Func::kSend:
      return TaskKind::kSend;
    case Func::kRecv:
      return TaskKind::kReceive;
    default:
      return TaskKind::kAllReduce;
  }
}

bool in_window(ncclComm* comm, const void* buffer, size_t bytes) {
  const auto* begin = static_cast<const char*>(buffer);
  const std::lock_guard lock(comm->windows_mutex);
  return std::any_of(comm->windows.begin(), comm->windows.end(), [&](const auto& window) {
    return begin >= window->begin && begin + bytes <= window->begin + window->bytes;
  });
}

int cta_policy_of(const ncclComm* comm) {
  return settings().cta_policy != kConfigUndefined ? settings().cta_policy : comm->cta_policy;
}

// As NCCL from 2.27 on, where both buffers are in symmetric windows.
Way way_of(const Call& call, size_t send_bytes, size_t recv_bytes) {
  ncclComm* comm = call.comm;
  const bool has_kernel =
      call.func == Func::kAllReduce || call.func == Func::kAllGather || call.func == Func::kReduceScatter;
  if (!has_kernel || comm->ranks == 1 || !settings().windows || nccl_version() < 22700) return Way::kPlain;
  if (!in_window(comm, call.send_buffer, send_bytes) || !in_window(comm, call.recv_buffer, recv_bytes))
    return Way::kPlain;
  const bool copies = cta_policy_of(comm) == kCtaPolicyZero && nccl_version() >= 22800;
  return copies && call.func == Func::kAllGather ? Way::kCopyEngine : Way::kSymmetric;
}

ncclResult_t add_stream(const Call& call) {
  ncclComm* comm = call.comm;
  if (std::find(comm->streams.begin(), comm->streams.end(), call.stream) != comm->streams.end()) return ncclSuccess;
  uint64_t graph = 0;
  const int capturing = comm->driver->pwe_is_capturing(call.stream, &graph);
  if (capturing < 0)
    return refuse(ncclUnhandledCudaError, "%s : the stream is invalid or its capture has failed", call.name);
  if (!comm->streams.empty() && (comm->capturing != (capturing != 0) || (capturing && comm->graph != graph)))
    return refuse(
        ncclInvalidUsage,
        "Streams given to a communicator within a NCCL group must either be all uncaptured or all captured by the same "
        "graph.");
  comm->capturing = capturing != 0;
  comm->graph = graph;
  comm->streams.push_back(call.stream);
  return ncclSuccess;
}

// `reported`: a profiler plugin gets an event.
ncclResult_t begin_task(const Call& call, bool reported) {
  group_joined(call.comm);
  if (const ncclResult_t result = add_stream(call); result != ncclSuccess) return result;
  if (reported) {
    group_api_started(call.comm, call.comm->capturing, group_depth());
    group_api_start_stopped();
  }
  return ncclSuccess;
}

Task make_task(const Call& call, const CollectiveTask& wire) {
  Task task{};
  task.func = call.func;
  task.send_buffer = call.send_buffer;
  task.recv_buffer = call.recv_buffer;
  task.count = call.count;
  task.type = call.type;
  task.root = call.root;
  task.wire = wire;
  task.mask = api_state().mask;
  task.group_api_handle = api_state().group_handle;
  return task;
}

ncclResult_t append_transfer(const Call& call, uint8_t pattern) {
  ncclComm* comm = call.comm;
  if (const ncclResult_t result = begin_task(call, true); result != ncclSuccess) return result;
  p2p_api_started(comm, {call.func, call.count, call.type, call.root, call.stream, comm->capturing});
  CollectiveTask wire{};
  wire.kind = static_cast<uint8_t>(wire_kind(call.func));
  wire.type = static_cast<uint8_t>(call.type);
  wire.pattern = pattern;
  wire.peer = static_cast<int16_t>(call.root);
  wire.count = call.count;
  wire.input = wire.output = wire.scalar = {kNoAllocation, 0};
  ncclResult_t result = ncclSuccess;
  if (call.count > 0) {
    BufferRef& buffer = call.func == Func::kSend ? wire.input : wire.output;
    result = resolve(comm, call.name, call.recv_buffer, call.count * type_bytes(call.type), buffer);
  }
  if (result == ncclSuccess) {
    Task task = make_task(call, wire);
    task.api_handle = api_state().p2p_handle;
    task.traffic_bytes = call.count * type_bytes(call.type);
    task.channels = channels_for(comm, task.traffic_bytes);
    comm->transfers.push_back(task);
  }
  p2p_api_stopped();
  return result;
}

ncclResult_t append_collective(const Call& call) {
  ncclComm* comm = call.comm;
  CollectiveTask wire{};
  wire.kind = static_cast<uint8_t>(wire_kind(call.func));
  wire.type = static_cast<uint8_t>(call.type);
  wire.pattern = static_cast<uint8_t>(emulator::kNoPattern);
  wire.peer = static_cast<int16_t>(call.root);
  wire.count = call.count;
  wire.input = wire.output = {kNoAllocation, 0};
  ncclResult_t result = set_reduction(call, wire);
  const size_t bytes = call.count * type_bytes(call.type);
  const auto ranks = static_cast<size_t>(comm->ranks);
  if (result == ncclSuccess && (call.func != Func::kBroadcast || comm->rank == call.root))
    result = resolve(comm, call.name, call.send_buffer, call.func == Func::kReduceScatter ? bytes * ranks : bytes,
                     wire.input);
  if (result == ncclSuccess && (call.func != Func::kReduce || comm->rank == call.root))
    result =
        resolve(comm, call.name, call.recv_buffer, call.func == Func::kAllGather ? bytes * ranks : bytes, wire.output);
  if (result != ncclSuccess) return result;

  const Way way = way_of(call, call.func == Func::kReduceScatter ? bytes * ranks : bytes,
                         call.func == Func::kAllGather ? bytes * ranks : bytes);
  // Alone in its communicator a rank copies, and NCCL tells no plugin; nor does 2.28 of any copies (seen with 2.28.9).
  const bool reported = comm->ranks > 1 && (way != Way::kCopyEngine || nccl_version() >= 22900);
  if (result = begin_task(call, reported); result != ncclSuccess) return result;
  if (reported) coll_api_started(comm, {call.func, call.count, call.type, call.root, call.stream, comm->capturing});
  Task task = make_task(call, wire);
  if (!reported) task.mask = 0;
  task.stream = call.stream;
  task.way = way;
  task.efficient = cta_policy_of(comm) == kCtaPolicyEfficiency;
  task.api_handle = reported ? api_state().coll_handle : nullptr;
  if (call.func == Func::kAllGather || call.func == Func::kBroadcast) {
    task.count = bytes;
    task.type = ncclInt8;
  }
  const size_t factor = call.func == Func::kAllReduce                                        ? 2
                        : call.func == Func::kAllGather || call.func == Func::kReduceScatter ? ranks
                                                                                             : 1;
  task.traffic_bytes = bytes * factor;
  task.channels = channels_for(comm, task.traffic_bytes);
  comm->colls.push_back(task);
  if (reported) coll_api_stopped();
  return ncclSuccess;
}

Call transfer_of(const Call& call, Func func, const void* base, int index, int peer) {
  Call part = call;
  part.func = func;
  part.root = peer;
  part.recv_buffer =
      static_cast<char*>(const_cast<void*>(base)) + static_cast<size_t>(index) * call.count * type_bytes(call.type);
  part.send_buffer = nullptr;
  return part;
}

// AlltoAll, Gather and Scatter are groups of sends and receives, the own rank included; empty ones and empty
// collectives are nothing.
ncclResult_t append(const Call& call) {
  const int ranks = call.comm->ranks;
  const bool root = call.comm->rank == call.root;
  ncclResult_t result = ncclSuccess;
  const auto send = [&](int index, int peer, uint8_t pattern) {
    if (result == ncclSuccess)
      result = append_transfer(transfer_of(call, Func::kSend, call.send_buffer, index, peer), pattern);
  };
  const auto receive = [&](int index, int peer, uint8_t pattern) {
    if (result == ncclSuccess)
      result = append_transfer(transfer_of(call, Func::kRecv, call.recv_buffer, index, peer), pattern);
  };
  switch (call.func) {
    case Func::kSend:
    case Func::kRecv:
      return append_transfer(call, static_cast<uint8_t>(emulator::kNoPattern));
    default:
      break;
  }
  if (call.count == 0) return ncclSuccess;
  switch (call.func) {
    case Func::kAlltoAll:
      for (int peer = 0; peer < ranks; ++peer) {
        send(peer, peer, kAllToAllPattern);
        receive(peer, peer, kAllToAllPattern);
      }
      return result;
    case Func::kGather:
      send(0, call.root, kGatherPattern);
      if (root)
        for (int peer = 0; peer < ranks; ++peer) receive(peer, peer, kGatherPattern);
      return result;
    case Func::kScatter:
      if (root)
        for (int peer = 0; peer < ranks; ++peer) send(peer, peer, kScatterPattern);
      receive(0, call.root, kScatterPattern);
      return result;
    default:
      return append_collective(call);
  }
}

}  // namespace

size_t type_bytes(ncclDataType_t type) {
  return emulator::element_bytes(static_cast<emulator::DataType>(type));
}

int channels_for(const ncclComm* comm, size_t traffic_bytes) {
  return static_cast<int>(
      emulator::default_channels(static_cast<double>(traffic_bytes), static_cast<uint32_t>(comm->channels)));
}

const char* func_name(Func func) {
  static constexpr const char* kNames[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
                                           "Send",      "Recv",   "AlltoAll",  "Scatter",       "Gather"};
  return kNames[static_cast<size_t>(func)];
}

ncclResult_t enqueue(const Call& call) {
  ncclComm* comm = call.comm;
  if (const ncclResult_t result = check_comm(comm, call.name); result != ncclSuccess) return group_error(result);
  if (comm->revoked) return group_error(refuse(ncclInvalidUsage, "%s: communicator was revoked", call.name));
  // The group that an operation opens for itself is no group of the user's.
  if (api_state().group_depth > 0) ++api_state().group_depth;
  group_start();
  ncclResult_t result = ensure_ready(comm);
  if (result == ncclSuccess) result = check_arguments(call);
  if (result == ncclSuccess) {
    info("%s: sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p", call.name,
         call.send_buffer, call.recv_buffer, call.count, call.type, call.op, call.root, static_cast<void*>(comm),
         comm->ranks, static_cast<void*>(call.stream));
    result = append(call);
  }
  group_error(result);
  const ncclResult_t ended = group_end();
  if (ended != ncclSuccess) return ended;
  if (result == ncclSuccess && !comm->blocking) return static_cast<ncclResult_t>(comm->async_error.load());
  return result;
}

}  // namespace powerccl::emulated_nccl
