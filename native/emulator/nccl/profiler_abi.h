// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin ABI, v4 to v7, from NCCL's side. Layouts and values are NCCL's facts, the text is ours.
//
// A descriptor is {type, parent, rank, union}. Later versions only append members to the union's structs, so the v7
// descriptor holds every earlier one; what differs is v4's one-byte type, its parents, and the size that may be read.
#ifndef POWERCCL_EMULATOR_NCCL_PROFILER_ABI_H
#define POWERCCL_EMULATOR_NCCL_PROFILER_ABI_H
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace powerccl::emulated_nccl {

enum EventType : uint64_t {
  kEventGroup = 0x1,
  kEventColl = 0x2,
  kEventP2p = 0x4,
  kEventProxyOp = 0x8,
  kEventProxyStep = 0x10,
  kEventKernelCh = 0x40,
  kEventNetPlugin = 0x80,
  kEventGroupApi = 0x100,
  kEventCollApi = 0x200,
  kEventP2pApi = 0x400,
  kEventKernelLaunch = 0x800,
  kEventCeColl = 0x1000,  // v6
};

enum EventState : int { kKernelChStop = 22, kGroupStartApiStop = 23, kGroupEndApiStart = 24 };

struct EventDescriptor {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      bool graph_captured;
      int group_depth;
    } group_api;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graph_captured;
      uint64_t user_tag;  // v7
    } coll_api;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool graph_captured;
      uint64_t user_tag;  // v7
    } p2p_api;
    struct {
      void* stream;
    } kernel_launch;
    struct {
      uint64_t seq_number;
      const char* func;
      const void* send_buffer;
      void* recv_buffer;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels;
      uint8_t warps;
      const char* algo;
      const char* proto;
      void* parent_group;          // v5 on; v4 has the group as its parent
      const char* kernel_variant;  // v7 from here
      bool is_sym_coll;
      uint64_t user_tag;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void* parent_group;
      uint64_t user_tag;  // v7
    } p2p;
    struct {
      uint8_t channel;
      uint64_t gpu_time_ns;
    } kernel_ch;
    struct {  // v6
      uint64_t seq_number;
      const char* func;
      const void* send_buffer;
      void* recv_buffer;
      size_t count;
      int root;
      const char* datatype;
      const char* sync_strategy;
      bool intra_batch_sync;
      uint32_t batch_size, batches, ce_sequence;
      void* stream;
      uint64_t user_tag;  // v7
    } ce_coll;
  };
};

// What a plugin of an ABI version may read of a descriptor, in bytes.
inline constexpr size_t kUnionOffset = offsetof(EventDescriptor, coll);
inline constexpr size_t kDescriptorBytesV4 = kUnionOffset + offsetof(decltype(EventDescriptor::coll), parent_group);
inline constexpr size_t kDescriptorBytesV5 = kUnionOffset + offsetof(decltype(EventDescriptor::coll), kernel_variant);
inline constexpr size_t kDescriptorBytesV6 = kDescriptorBytesV5;  // its copy-engine members are no larger
inline constexpr size_t kDescriptorBytesV7 = sizeof(EventDescriptor);
static_assert(kUnionOffset == 24 && kDescriptorBytesV4 == 24 + 80 && kDescriptorBytesV5 == 24 + 88 &&
              kDescriptorBytesV7 == 24 + 112);

union EventStateArgs {
  struct {
    uint64_t gpu_time_ns;
  } kernel_ch;
  uint64_t words[1];
};

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct PluginV4 {
  const char* name;
  int (*init)(void** context, int* mask, const char* comm_name, uint64_t comm_hash, int nodes, int ranks, int rank,
              Logger log);
  int (*start_event)(void* context, void** handle, void* descriptor);
  int (*stop_event)(void* handle);
  int (*record_event_state)(void* handle, int state, EventStateArgs* args);
  int (*finalize)(void* context);
};

// v5, v6 and v7 differ in the descriptor alone.
struct PluginV5 {
  const char* name;
  int (*init)(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nodes, int ranks, int rank,
              Logger log);
  int (*start_event)(void* context, void** handle, void* descriptor);
  int (*stop_event)(void* handle);
  int (*record_event_state)(void* handle, int state, EventStateArgs* args);
  int (*finalize)(void* context);
};

}  // namespace powerccl::emulated_nccl
#endif
