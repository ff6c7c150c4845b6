// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's API that the bench uses, from libnccl.so.2 at run time. Declarations are ours, written from NCCL
// 2.x's public ABI. Enum values and argument lists have not changed since 2.7 (send/recv), 2.10 (avg, bfloat16)
// and 2.28 (all-to-all, gather, scatter).
#pragma once
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
  unsigned magic = 0xcafebeef, version = 22700;
  int blocking = kUndefined, cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined, traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined, cta_policy = kUndefined, shrink_share = kUndefined, nvls_ctas = kUndefined;
  static constexpr int kUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT
};

enum NcclResult : int { kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInProgress = 7 };

struct NcclApi {
  explicit NcclApi(Library loaded) : library(std::move(loaded)) {}

  Library library;
  std::string path = library.path("ncclGetVersion");
  int (*get_version)(int*) = library.required("ncclGetVersion");
  int (*get_unique_id)(NcclUniqueId*) = library.required("ncclGetUniqueId");
  int (*comm_init_rank)(NcclComm*, int ranks, NcclUniqueId, int rank) = library.required("ncclCommInitRank");
  int (*comm_destroy)(NcclComm) = library.required("ncclCommDestroy");
  int (*comm_abort)(NcclComm) = library.required("ncclCommAbort");
  int (*comm_get_async_error)(NcclComm, int*) = library.required("ncclCommGetAsyncError");
  const char* (*get_error_string)(int) = library.required("ncclGetErrorString");
  int (*group_start)() = library.required("ncclGroupStart");
  int (*group_end)() = library.required("ncclGroupEnd");

  using Reducing = int (*)(const void*, void*, size_t, int type, int op, NcclComm, CUstream);
  using Rooted = int (*)(const void*, void*, size_t, int type, int root, NcclComm, CUstream);
  using Moving = int (*)(const void*, void*, size_t, int type, NcclComm, CUstream);
  Reducing all_reduce = library.required("ncclAllReduce");
  Rooted broadcast = library.required("ncclBroadcast");
  int (*reduce)(const void*, void*, size_t, int, int op, int root, NcclComm, CUstream) = library.required("ncclReduce");
  Moving all_gather = library.required("ncclAllGather");
  Reducing reduce_scatter = library.required("ncclReduceScatter");
  int (*send)(const void*, size_t, int type, int peer, NcclComm, CUstream) = library.required("ncclSend");
  int (*recv)(void*, size_t, int type, int peer, NcclComm, CUstream) = library.required("ncclRecv");

  // Null before the version that brought them.
  const char* (*get_last_error)(NcclComm) = library.optional("ncclGetLastError");  // 2.13
  int (*comm_init_rank_config)(NcclComm*, int ranks, NcclUniqueId, int rank,
                               NcclConfig*) = library.optional("ncclCommInitRankConfig");                     // 2.14
  int (*comm_split)(NcclComm, int color, int key, NcclComm*, void*) = library.optional("ncclCommSplit");      // 2.18
  int (*mem_alloc)(void**, size_t) = library.optional("ncclMemAlloc");                                        // 2.19
  int (*mem_free)(void*) = library.optional("ncclMemFree");                                                   // 2.19
  int (*window_register)(NcclComm, void*, size_t, void**, int) = library.optional("ncclCommWindowRegister");  // 2.27
  int (*window_deregister)(NcclComm, void*) = library.optional("ncclCommWindowDeregister");                   // 2.27
  Moving all_to_all = library.optional("ncclAlltoAll");                                                       // 2.28
  Rooted gather = library.optional("ncclGather");                                                             // 2.28
  Rooted scatter = library.optional("ncclScatter");                                                           // 2.28

  // As a linked program has it: loaded once a process, by whichever rank comes first; `explicit_path` is the same for
  // all.
  static std::shared_ptr<const NcclApi> instance(const std::string& explicit_path);
  // An instance of its own, from a file that no other was loaded from: with fresh statics.
  static std::shared_ptr<NcclApi> own(const std::string& path);
  // NcclFailure with NCCL's own words; `comm` may be null.
  void check(int result, const char* doing, NcclComm comm = nullptr) const;
};

// The files tried, in order: `explicit_path` alone if given (--nccl), else NCCL_LIBRARY alone. Else libnccl.so.2 as the
// loader finds it, then POWERCCL_NCCL_LIBRARY (set by Python: where PyTorch's wheel keeps it).
std::vector<std::string> nccl_candidates(const std::string& explicit_path);

// 22809 -> "2.28.9"
std::string nccl_version_text(int version);

struct NcclFile {
  std::string path;
  int version;
};
// The library that a rank would load, found out in a child process. Failure(kExitMissing) where there is none.
NcclFile find_nccl(const std::string& explicit_path);

// Copies of the NCCL library in memory. The loader knows a library by its file, so a copy is another library with fresh
// statics. Processes that load the same copy share its pages.
class LibraryCopies {
 public:
  explicit LibraryCopies(std::string path) : path_(std::move(path)) {}
  LibraryCopies(const LibraryCopies&) = delete;
  LibraryCopies& operator=(const LibraryCopies&) = delete;

  // A copy that is loaded nowhere, as a file that this process's children can open. Failure(kExitMissing).
  const std::string& current();
  // The current copy stays loaded somewhere: the next is another one.
  void spend() { current_.clear(); }

 private:
  std::string path_, current_;
};

}  // namespace powerccl::bench
