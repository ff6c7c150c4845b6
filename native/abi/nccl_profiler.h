// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin ABI, versions 4 to 7: which bytes mean what. The adapter and the emulated NCCL share it.
//
// The declarations are ours, because NCCL's packages ship no header of it (docs/decisions/0027-nccl-plugin-headers.md).
// Source of the facts: NCCL 2.27 to 2.30 (<src/include/plugin/profiler/profiler_v4.h> to <profiler_v6.h>); v7: NCCL
// 2.31. From v5 on, a version only adds members at the ends of the descriptor's parts. v4's one-byte type is the first
// byte of v5's eight. So one declaration serves all versions. A comment says which version a member came with.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace powerccl::nccl {

// Bits of the event mask; an event's type is its bit.
constexpr uint64_t kEventGroup = 1u << 0;          // a kernel plan: what is launched together
constexpr uint64_t kEventColl = 1u << 1;           // a collective in it
constexpr uint64_t kEventP2p = 1u << 2;            // a send or receive in it
constexpr uint64_t kEventProxyOp = 1u << 3;        // what NCCL's network thread does for it
constexpr uint64_t kEventProxyStep = 1u << 4;      // a transfer of that
constexpr uint64_t kEventKernelCh = 1u << 6;       // one channel of a kernel, timed on the GPU
constexpr uint64_t kEventNetPlugin = 1u << 7;      // what the network's plugin reports of a transfer
constexpr uint64_t kEventGroupApi = 1u << 8;       // v5: an outermost group of API calls
constexpr uint64_t kEventCollApi = 1u << 9;        // v5
constexpr uint64_t kEventP2pApi = 1u << 10;        // v5
constexpr uint64_t kEventKernelLaunch = 1u << 11;  // v5
constexpr uint64_t kEventCeColl = 1u << 12;        // v6: a collective on copy engines
constexpr uint64_t kEventCeSync = 1u << 13;        // v6: its ranks meet
constexpr uint64_t kEventCeBatch = 1u << 14;       // v6: its copies

// States given to recordEventState.
constexpr int kStateKernelChStop = 22;
constexpr int kStateGroupStartApiStop = 23;  // v5: ncclGroupStart, or the first call without one, has returned
constexpr int kStateGroupEndApiStart = 24;   // v5: everything has been put into the group

// What a version has words for: events, and states up to this one.
constexpr uint64_t events_of_version(int version) {
  if (version <= 4) return 0xff;
  if (version == 5) return 0xfff;
  return version == 6 ? 0x7fff : ~uint64_t{0};
}
constexpr int last_state_of_version(int version) {
  return version <= 4 ? kStateKernelChStop : version == 5 ? kStateGroupEndApiStart : 0x7fffffff;
}

// NCCL reports an event also where only what happens inside it was asked for.
constexpr uint64_t events_inside(uint64_t type) {
  constexpr uint64_t kStep = kEventNetPlugin, kOp = kEventProxyStep | kStep;
  constexpr uint64_t kTask = kEventKernelCh | kEventProxyOp | kOp, kCopies = kEventCeSync | kEventCeBatch;
  constexpr uint64_t kKernel = kEventColl | kEventP2p | kTask;
  switch (type) {
    case kEventGroupApi:
      return kEventGroup | kEventCollApi | kEventP2pApi | kEventKernelLaunch | kEventCeColl | kKernel | kCopies;
    case kEventCollApi:
      return kEventColl | kTask | kEventCeColl | kCopies;
    case kEventP2pApi:
      return kEventP2p | kTask;
    case kEventGroup:
      return kKernel;
    case kEventColl:
    case kEventP2p:
      return kTask;
    case kEventProxyOp:
      return kOp;
    case kEventProxyStep:
      return kStep;
    case kEventCeColl:
      return kCopies;
    default:
      return 0;
  }
}

struct GroupApi {
  bool graph_captured;
  int group_depth;
};
struct CollApi {
  const char* function;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
  uint64_t user_tag;  // v7
};
struct P2pApi {
  const char* function;
  size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
  uint64_t user_tag;  // v7
};
struct KernelLaunch {
  void* stream;
};
struct Coll {
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels, warps;
  const char* algorithm;
  const char* protocol;
  void* parent_group;          // v5; in v4 the descriptor's parent is the group
  const char* kernel_variant;  // v7
  bool symmetric;              // v7
  uint64_t user_tag;           // v7
};
struct P2p {
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void* parent_group;  // v5; see Coll
  uint64_t user_tag;   // v7
};
struct ProxyOp {
  int pid;  // of the process that made the call, whose handle the parent is
};
struct KernelCh {
  uint8_t channel;
  uint64_t gpu_timer;  // ns of the GPU's globaltimer
};
struct KernelPhase {  // v7
  uint8_t channel, phase;
  const char* name;
  uint64_t gpu_timer;
};
struct CeColl {  // v6
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* datatype;
  const char* sync_strategy;
  bool intra_batch_sync;
  uint32_t batch_size, batches, ce_sequence;
  void* stream;
  uint64_t user_tag;  // v7
};

struct EventDescriptor {
  uint64_t type;  // v4: only the first byte
  void* parent;
  int rank;
  union {
    GroupApi group_api;          // v5
    CollApi coll_api;            // v5
    P2pApi p2p_api;              // v5
    KernelLaunch kernel_launch;  // v5
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    KernelCh kernel_channel;
    CeColl ce_coll;            // v6
    KernelPhase kernel_phase;  // v7
  };
};

union StateArguments {
  uint64_t gpu_timer;  // of kStateKernelChStop; v4 and later
};

using Result = int;  // ncclResult_t; 0: success, and nothing else is ever returned
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// The function tables; v4 passes the communicator's name before its id, v5 and later the id first.
struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* event_mask, const char* communicator_name, uint64_t communicator_id, int nodes,
                 int ranks, int rank, Logger log);
  Result (*start_event)(void* context, void** handle, EventDescriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator_id, int* event_mask, const char* communicator_name, int nodes,
                 int ranks, int rank, Logger log);
  Result (*start_event)(void* context, void** handle, EventDescriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
using ProfilerV6 = ProfilerV5;
using ProfilerV7 = ProfilerV5;

// How many bytes of a descriptor exist in a version.
constexpr size_t descriptor_bytes_of_version(int version) {
  constexpr size_t kParts = offsetof(EventDescriptor, coll);
  if (version <= 4) return kParts + offsetof(Coll, parent_group);
  return version <= 6 ? kParts + offsetof(Coll, kernel_variant) : sizeof(EventDescriptor);
}

#define POWERCCL_AT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "." #member " is not where NCCL puts it")
POWERCCL_AT(EventDescriptor, type, 0);
POWERCCL_AT(EventDescriptor, parent, 8);
POWERCCL_AT(EventDescriptor, rank, 16);
POWERCCL_AT(EventDescriptor, coll, 24);
POWERCCL_AT(GroupApi, graph_captured, 0);
POWERCCL_AT(GroupApi, group_depth, 4);
POWERCCL_AT(CollApi, function, 0);
POWERCCL_AT(CollApi, count, 8);
POWERCCL_AT(CollApi, datatype, 16);
POWERCCL_AT(CollApi, root, 24);
POWERCCL_AT(CollApi, stream, 32);
POWERCCL_AT(CollApi, graph_captured, 40);
POWERCCL_AT(CollApi, user_tag, 48);
POWERCCL_AT(P2pApi, function, 0);
POWERCCL_AT(P2pApi, count, 8);
POWERCCL_AT(P2pApi, datatype, 16);
POWERCCL_AT(P2pApi, stream, 24);
POWERCCL_AT(P2pApi, graph_captured, 32);
POWERCCL_AT(P2pApi, user_tag, 40);
POWERCCL_AT(KernelLaunch, stream, 0);
POWERCCL_AT(Coll, sequence, 0);
POWERCCL_AT(Coll, function, 8);
POWERCCL_AT(Coll, send_buffer, 16);
POWERCCL_AT(Coll, receive_buffer, 24);
POWERCCL_AT(Coll, count, 32);
POWERCCL_AT(Coll, root, 40);
POWERCCL_AT(Coll, datatype, 48);
POWERCCL_AT(Coll, channels, 56);
POWERCCL_AT(Coll, warps, 57);
POWERCCL_AT(Coll, algorithm, 64);
POWERCCL_AT(Coll, protocol, 72);
POWERCCL_AT(Coll, parent_group, 80);
POWERCCL_AT(Coll, kernel_variant, 88);
POWERCCL_AT(Coll, symmetric, 96);
POWERCCL_AT(Coll, user_tag, 104);
POWERCCL_AT(P2p, function, 0);
POWERCCL_AT(P2p, buffer, 8);
POWERCCL_AT(P2p, datatype, 16);
POWERCCL_AT(P2p, count, 24);
POWERCCL_AT(P2p, peer, 32);
POWERCCL_AT(P2p, channels, 36);
POWERCCL_AT(P2p, parent_group, 40);
POWERCCL_AT(P2p, user_tag, 48);
POWERCCL_AT(ProxyOp, pid, 0);
POWERCCL_AT(KernelCh, channel, 0);
POWERCCL_AT(KernelCh, gpu_timer, 8);
POWERCCL_AT(KernelPhase, phase, 1);
POWERCCL_AT(KernelPhase, name, 8);
POWERCCL_AT(KernelPhase, gpu_timer, 16);
POWERCCL_AT(CeColl, sequence, 0);
POWERCCL_AT(CeColl, function, 8);
POWERCCL_AT(CeColl, send_buffer, 16);
POWERCCL_AT(CeColl, receive_buffer, 24);
POWERCCL_AT(CeColl, count, 32);
POWERCCL_AT(CeColl, root, 40);
POWERCCL_AT(CeColl, datatype, 48);
POWERCCL_AT(CeColl, sync_strategy, 56);
POWERCCL_AT(CeColl, intra_batch_sync, 64);
POWERCCL_AT(CeColl, batch_size, 68);
POWERCCL_AT(CeColl, batches, 72);
POWERCCL_AT(CeColl, ce_sequence, 76);
POWERCCL_AT(CeColl, stream, 80);
POWERCCL_AT(CeColl, user_tag, 88);
POWERCCL_AT(StateArguments, gpu_timer, 0);
POWERCCL_AT(ProfilerV4, init, 8);
POWERCCL_AT(ProfilerV4, start_event, 16);
POWERCCL_AT(ProfilerV4, stop_event, 24);
POWERCCL_AT(ProfilerV4, record_event_state, 32);
POWERCCL_AT(ProfilerV4, finalize, 40);
POWERCCL_AT(ProfilerV5, init, 8);
POWERCCL_AT(ProfilerV5, start_event, 16);
POWERCCL_AT(ProfilerV5, stop_event, 24);
POWERCCL_AT(ProfilerV5, record_event_state, 32);
POWERCCL_AT(ProfilerV5, finalize, 40);
static_assert(descriptor_bytes_of_version(4) == 104 && descriptor_bytes_of_version(5) == 112 &&
              descriptor_bytes_of_version(6) == 112 && descriptor_bytes_of_version(7) == 136);
#undef POWERCCL_AT

}  // namespace powerccl::nccl
