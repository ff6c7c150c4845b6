// SPDX-License-Identifier: Apache-2.0
// NCCL's tuner plugin ABI, versions 3 to 6: which bytes mean what. The adapter and the emulated NCCL share it.
//
// The declarations are ours, because NCCL's packages ship no header of it (docs/decisions/0027-nccl-plugin-headers.md).
// Source of the facts: NCCL 2.24 to 2.30 (<src/include/plugin/tuner/tuner_v3.h> to <tuner_v6.h>), and what
// <src/enqueue.cc> does with the answer.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace powerccl::nccl {

// ncclFunc_t: the collectives that a tuner is asked about.
constexpr int kTunedBroadcast = 0;
constexpr int kTunedReduce = 1;
constexpr int kTunedAllGather = 2;
constexpr int kTunedReduceScatter = 3;
constexpr int kTunedAllReduce = 4;

// Rows and columns of the cost table.
constexpr int kAlgorithmTree = 0;
constexpr int kAlgorithmRing = 1;
constexpr int kAlgorithmCollnetDirect = 2;
constexpr int kAlgorithmCollnetChain = 3;
constexpr int kAlgorithmNvls = 4;
constexpr int kAlgorithmNvlsTree = 5;
constexpr int kAlgorithmPat = 6;
constexpr int kTunerAlgorithms = 7;
constexpr int kProtocolLl = 0;
constexpr int kProtocolLl128 = 1;
constexpr int kProtocolSimple = 2;
constexpr int kTunerProtocols = 3;
using CostTable = float[kTunerAlgorithms][kTunerProtocols];

constexpr int kMaxChannels = 64;  // NCCL's own limit from 2.27 on; 32 before

// What a cell holds that this communicator or NCCL_ALGO and NCCL_PROTO rule out; all others are microseconds from 0 on,
// and NCCL takes the lowest.
constexpr float kCostUnavailable = -1.0f;

struct NvlDomains {  // v5
  int count;
  int least_ranks, most_ranks;  // of one
};

// v5: what NCCL's cost model is made of. A plugin may rewrite it.
struct TunerConstants {
  double base_latencies[kTunerAlgorithms][kTunerProtocols];         // us
  double hardware_latencies[3][kTunerAlgorithms][kTunerProtocols];  // us; NVLink, PCI, network
  // GB/s by compute capability (Volta, Ampere, Hopper, Blackwell) and scale (1, 2, more nodes).
  double ll_bandwidths[4][3];
  double ring_ll128_bandwidths[4][3];  // from here on, of one channel
  double tree_ll128_bandwidths[4][3];
  double tree_bandwidths[4][3];
  double nvls_tree_bandwidths[4][3];
};

using TunerLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// The cost table is declared float**, but it is the address of a plain array: row after row, `protocols` to a row.
// `channels` is 0 in the question. NCCL chooses what the answer leaves at 0. An error is passed on to the job, whatever
// the header says.
using GetCollectiveInfo = int (*)(void* context, int collective, size_t bytes, int pipe_ops, float** costs,
                                  int algorithms, int protocols, int registered, int* channels);

// As v4, without `registered`: plugins have it that were made for NCCL 2.21 to 2.23, and NCCL still takes them.
using GetCollectiveInfoV3 = int (*)(void* context, int collective, size_t bytes, int pipe_ops, float** costs,
                                    int algorithms, int protocols, int* channels);
struct TunerV3 {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, TunerLogger log, void** context);
  GetCollectiveInfoV3 get_collective_info;
  int (*destroy)(void* context);
};
struct TunerV4 {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, TunerLogger log, void** context);
  GetCollectiveInfo get_collective_info;
  int (*destroy)(void* context);
};
struct TunerV5 {
  const char* name;
  int (*init)(void** context, uint64_t communicator_id, size_t ranks, size_t nodes, TunerLogger log,
              NvlDomains* domains, TunerConstants* constants);
  GetCollectiveInfo get_collective_info;
  int (*finalize)(void* context);
};
struct TunerV6 {
  const char* name;
  int (*init)(void** context, uint64_t communicator_id, size_t ranks, size_t nodes, TunerLogger log,
              NvlDomains* domains, TunerConstants* constants);
  GetCollectiveInfo get_collective_info;
  int (*finalize)(void* context);
  // Null: chunks are NCCL's own. With any function here NCCL also clamps them.
  int (*get_chunk_size)(void* context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                        size_t* chunk_bytes);
};

#define POWERCCL_AT(type, member, offset) \
  static_assert(offsetof(type, member) == (offset), #type "." #member " is not where NCCL puts it")
POWERCCL_AT(TunerV3, init, 8);
POWERCCL_AT(TunerV3, get_collective_info, 16);
POWERCCL_AT(TunerV3, destroy, 24);
POWERCCL_AT(TunerV4, init, 8);
POWERCCL_AT(TunerV4, get_collective_info, 16);
POWERCCL_AT(TunerV4, destroy, 24);
POWERCCL_AT(TunerV5, init, 8);
POWERCCL_AT(TunerV5, get_collective_info, 16);
POWERCCL_AT(TunerV5, finalize, 24);
POWERCCL_AT(TunerV6, init, 8);
POWERCCL_AT(TunerV6, get_collective_info, 16);
POWERCCL_AT(TunerV6, finalize, 24);
POWERCCL_AT(TunerV6, get_chunk_size, 32);
POWERCCL_AT(NvlDomains, least_ranks, 4);
POWERCCL_AT(NvlDomains, most_ranks, 8);
POWERCCL_AT(TunerConstants, hardware_latencies, 168);
POWERCCL_AT(TunerConstants, ll_bandwidths, 672);
POWERCCL_AT(TunerConstants, ring_ll128_bandwidths, 768);
POWERCCL_AT(TunerConstants, tree_ll128_bandwidths, 864);
POWERCCL_AT(TunerConstants, tree_bandwidths, 960);
POWERCCL_AT(TunerConstants, nvls_tree_bandwidths, 1056);
static_assert(sizeof(TunerConstants) == 1152);
#undef POWERCCL_AT

}  // namespace powerccl::nccl
