// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's API that the bench uses, from libnccl.so.2 at run time. Declarations are ours, written from the
// facts of NCCL 2.x's public ABI: enum values and argument lists have not changed since 2.7 (send/recv), 2.10 (avg,
// bfloat16) and 2.28 (all-to-all, gather, scatter).
#ifndef POWERCCL_BENCH_NCCL_API_H
#define POWERCCL_BENCH_NCCL_API_H
#include <cuda.h>

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bench/library.h"

namespace powerccl::bench {

struct NcclUniqueId {
  char bytes[128];
};
using NcclComm = struct NcclCommOpaque*;

// ncclConfig_t of NCCL 2.27, which later ones take: they only add to its end.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22700;
  int blocking = kUndefined, cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined, traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined, cta_policy = kUndefined, shrink_share = kUndefined, nvls_ctas = kUndefined;
  static constexpr int kUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT
};

enum NcclResult : int { kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInProgress = 7 };

struct NcclApi {
  int (*get_version)(int*);
  int (*get_unique_id)(NcclUniqueId*);
  int (*comm_init_rank)(NcclComm*, int ranks, NcclUniqueId, int rank);
  int (*comm_init_rank_config)(NcclComm*, int ranks, NcclUniqueId, int rank, NcclConfig*);  // since 2.14; null before
  int (*comm_split)(NcclComm, int color, int key, NcclComm*, void* config);                 // since 2.18; null before
  int (*comm_destroy)(NcclComm);
  int (*comm_abort)(NcclComm);
  int (*comm_get_async_error)(NcclComm, int*);
  const char* (*get_error_string)(int);
  const char* (*get_last_error)(NcclComm);  // since 2.13; null before
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void*, void*, size_t, int type, int op, NcclComm, CUstream);
  int (*broadcast)(const void*, void*, size_t, int type, int root, NcclComm, CUstream);
  int (*reduce)(const void*, void*, size_t, int type, int op, int root, NcclComm, CUstream);
  int (*all_gather)(const void*, void*, size_t, int type, NcclComm, CUstream);
  int (*reduce_scatter)(const void*, void*, size_t, int type, int op, NcclComm, CUstream);
  int (*send)(const void*, size_t, int type, int peer, NcclComm, CUstream);
  int (*recv)(void*, size_t, int type, int peer, NcclComm, CUstream);
  int (*all_to_all)(const void*, void*, size_t, int type, NcclComm, CUstream);         // since 2.28; null before
  int (*gather)(const void*, void*, size_t, int type, int root, NcclComm, CUstream);   // since 2.28
  int (*scatter)(const void*, void*, size_t, int type, int root, NcclComm, CUstream);  // since 2.28
  int (*mem_alloc)(void**, size_t);                                                    // since 2.19; null before
  int (*mem_free)(void*);
  int (*window_register)(NcclComm, void*, size_t, void** window, int flags);  // since 2.27; null before
  int (*window_deregister)(NcclComm, void* window);
  std::string path;
  Library library;

  // As a linked program has it: loaded once a process, by whichever rank comes first; `explicit_path` is the same for
  // all.
  static std::shared_ptr<const NcclApi> instance(const std::string& explicit_path);
  // An instance of its own, from a file that no other was loaded from: with statics that nobody has touched yet.
  static std::shared_ptr<NcclApi> own(const std::string& path);
  // NcclFailure with NCCL's own words; `comm` may be null.
  void check(int result, const char* doing, NcclComm comm = nullptr) const;
};

// The files tried, in order: `explicit_path` alone if given (--nccl), else NCCL_LIBRARY alone, else libnccl.so.2 as the
// loader finds it, then POWERCCL_NCCL_LIBRARY (set by Python: where PyTorch's wheel keeps it).
std::vector<std::string> nccl_candidates(const std::string& explicit_path);

// 22809 -> "2.28.9"
std::string nccl_version_text(int version);

}  // namespace powerccl::bench
#endif
