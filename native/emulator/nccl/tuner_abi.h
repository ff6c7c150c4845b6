// SPDX-License-Identifier: Apache-2.0
// NCCL's tuner plugin ABI, v4 to v6, from NCCL's side. Layouts and values are NCCL's facts, the text is ours.
#ifndef POWERCCL_EMULATOR_NCCL_TUNER_ABI_H
#define POWERCCL_EMULATOR_NCCL_TUNER_ABI_H
#include <cstddef>
#include <cstdint>

#include "emulator/nccl/profiler_abi.h"

namespace powerccl::emulated_nccl {

inline constexpr int kTunerAlgorithms = 7;  // tree, ring, collnet direct, collnet chain, nvls, nvls tree, pat
inline constexpr int kTunerProtocols = 3;   // ll, ll128, simple
inline constexpr float kCostIgnored = -1;   // not usable: a tuner must leave it

using CostTable = float[kTunerAlgorithms][kTunerProtocols];

// v5 on.
struct NvlinkDomains {
  int domains;
  int fewest_ranks;
  int most_ranks;
};

// v5 on: what NCCL's cost model is made of, and a plugin may rewrite.
struct TunerConstants {
  double base_latencies[kTunerAlgorithms][kTunerProtocols];
  double hardware_latencies[3][kTunerAlgorithms][kTunerProtocols];  // NVLink, PCI, network
  // By compute capability (Volta, Ampere, Hopper, Blackwell) and scale (1, 2, more nodes), GB/s.
  double ll_bandwidths[4][3];
  double ring_ll128_bandwidths[4][3];  // from here a channel's
  double tree_ll128_bandwidths[4][3];
  double tree_bandwidths[4][3];
  double nvls_tree_bandwidths[4][3];
};
static_assert(sizeof(TunerConstants) == (21 + 63 + 5 * 12) * sizeof(double));

// The table is passed as float**, which it is not: it is the address of [algorithms][protocols] floats.
using GetCollInfo = int (*)(void* context, int function, size_t bytes, int pipelined_operations, float** costs,
                            int algorithms, int protocols, int registered_buffers, int* channels);

struct TunerV4 {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, Logger log, void** context);
  GetCollInfo get_coll_info;
  int (*destroy)(void* context);
};

struct TunerV5 {
  const char* name;
  int (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, Logger log, NvlinkDomains* domains,
              TunerConstants* constants);
  GetCollInfo get_coll_info;
  int (*finalize)(void* context);
};

struct TunerV6 {
  TunerV5 v5;
  // May be null.
  int (*get_chunk_size)(void* context, int function, size_t bytes, int algorithm, int protocol, int channels,
                        size_t* chunk_bytes);
};

}  // namespace powerccl::emulated_nccl
#endif
