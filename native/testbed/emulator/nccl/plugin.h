// SPDX-License-Identifier: Apache-2.0
// Finding, opening and talking to a profiler plugin, as NCCL 2.28.9 does, over its ABI v4 to v7.
#pragma once
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

// The version that is emulated: POWERCCL_EMULATOR_NCCL_VERSION, else kNcclVersion.
int nccl_version();

// The plugin is loaded by the first communicator and unloaded behind the last one. A failed load is final, as in NCCL.
class ProfilerPlugin {
 public:
  // Loads on first use. False: there is no plugin (none asked for, not found, or no ABI in common).
  static bool acquire();
  static void release();

  static bool loaded();
  static int abi_version();
  // The mask of events that the plugin wants now; plugins may change it at any time.
  static uint64_t event_mask();

  static int init(void** context, uint64_t comm_id, const char* comm_name, int ranks, int rank);
  static void start(void* context, void** handle, const EventDescriptor& descriptor);
  static void stop(void* handle);
  static void record(void* handle, int state, uint64_t gpu_time_ns);
  static void finalize(void* context);
};

}  // namespace powerccl::emulated_nccl
