// SPDX-License-Identifier: Apache-2.0
// Finding, opening and asking a tuner plugin, as NCCL 2.28.9 does, over its ABI v4 to v6.
#pragma once
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

// The plugin is loaded by the first communicator and unloaded behind the last one. A failed load is final, as in NCCL.
// What its functions return is handed on: NCCL fails the call that it was asked for.
class TunerPlugin {
 public:
  // Loads on first use. False: there is no plugin (none asked for, not found, or no ABI in common).
  static bool acquire();
  static void release();

  static ncclResult_t init(void** context, uint64_t comm_id, int ranks, TunerConstants* constants);
  static ncclResult_t get_coll_info(void* context, int function, size_t bytes, int pipelined_operations,
                                    CostTable& costs, bool captured, int* channels);
  // The chunk that the plugin would have; the model of time does not know chunks.
  static ncclResult_t get_chunk_size(void* context, int function, size_t bytes, int algorithm, int protocol,
                                     int channels, size_t* chunk_bytes);
  static void finalize(void* context);
};

}  // namespace powerccl::emulated_nccl
