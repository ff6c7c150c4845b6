// SPDX-License-Identifier: Apache-2.0
#include "bench/nccl_api.h"

#include <cstdlib>

#include "bench/failure.h"

namespace powerccl::bench {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

const char* const kHint =
    "install NCCL (pip install nvidia-nccl-cu13), or name the file: --nccl /path/libnccl.so.2 or NCCL_LIBRARY=...";

NcclApi look_up(const Library& library) {
  NcclApi api{};
  library.required(api.get_version, "ncclGetVersion");
  library.required(api.get_unique_id, "ncclGetUniqueId");
  library.required(api.comm_init_rank, "ncclCommInitRank");
  library.optional(api.comm_split, "ncclCommSplit");
  library.required(api.comm_destroy, "ncclCommDestroy");
  library.required(api.comm_abort, "ncclCommAbort");
  library.required(api.comm_get_async_error, "ncclCommGetAsyncError");
  library.required(api.get_error_string, "ncclGetErrorString");
  library.optional(api.get_last_error, "ncclGetLastError");
  library.required(api.group_start, "ncclGroupStart");
  library.required(api.group_end, "ncclGroupEnd");
  library.required(api.all_reduce, "ncclAllReduce");
  library.required(api.broadcast, "ncclBroadcast");
  library.required(api.reduce, "ncclReduce");
  library.required(api.all_gather, "ncclAllGather");
  library.required(api.reduce_scatter, "ncclReduceScatter");
  library.required(api.send, "ncclSend");
  library.required(api.recv, "ncclRecv");
  library.optional(api.all_to_all, "ncclAlltoAll");
  library.optional(api.gather, "ncclGather");
  library.optional(api.scatter, "ncclScatter");
  library.optional(api.mem_alloc, "ncclMemAlloc");
  library.optional(api.mem_free, "ncclMemFree");
  library.optional(api.comm_init_rank_config, "ncclCommInitRankConfig");
  library.optional(api.window_register, "ncclCommWindowRegister");
  library.optional(api.window_deregister, "ncclCommWindowDeregister");
  api.path = library.path("ncclGetVersion");
  api.library = library;
  return api;
}

}  // namespace

std::vector<std::string> nccl_candidates(const std::string& explicit_path) {
  if (!explicit_path.empty()) return {explicit_path};
  if (const std::string chosen = environment("NCCL_LIBRARY"); !chosen.empty()) return {chosen};
  std::vector<std::string> names{"libnccl.so.2"};
  if (const std::string wheel = environment("POWERCCL_NCCL_LIBRARY"); !wheel.empty()) names.push_back(wheel);
  return names;
}

std::shared_ptr<const NcclApi> NcclApi::instance(const std::string& explicit_path) {
  static const auto api =
      std::make_shared<const NcclApi>(look_up(Library::open(nccl_candidates(explicit_path), kHint)));
  return api;
}

std::shared_ptr<NcclApi> NcclApi::own(const std::string& path) {
  return std::make_shared<NcclApi>(look_up(Library::open_alone(path, kHint)));
}

void NcclApi::check(int result, const char* doing, NcclComm comm) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const char* last = get_last_error != nullptr ? get_last_error(comm) : nullptr;
  std::string text = std::string(doing) + ": " + get_error_string(result);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  throw NcclFailure(text);
}

std::string nccl_version_text(int version) {
  // Up to 2.8 the code was major * 1000 + minor * 100 + patch.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace powerccl::bench
