// SPDX-License-Identifier: Apache-2.0
// The API's communicators: creation, splitting, end.
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emulator/nccl/group.h"
#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/settings.h"

using namespace powerccl::emulated_nccl;
using powerccl::emulator::CollectiveMessage;

namespace {

uint32_t moves_data() {
  const char* value = getenv("POWERCCL_EMULATOR_MOVE_DATA");
  return !(value && strcmp(value, "0") == 0);
}

// As much of the caller's structure as it knows; the rest stays undefined.
ncclResult_t read_config(const ncclConfig_t* given, ncclConfig_t& config) {
  constexpr const char* kNotInitialized = "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER";
  config = {};
  config.blocking = config.minCTAs = config.maxCTAs = config.CTAPolicy = kConfigUndefined;
  if (!given) return ncclSuccess;
  size_t size = 0;
  memcpy(&size, given, sizeof size);
  if (size < offsetof(ncclConfig_t, cgaClusterSize)) return refuse(ncclInvalidArgument, "%s", kNotInitialized);
  memcpy(&config, given, std::min(size, sizeof config));
  if (config.magic != kConfigMagic) return refuse(ncclInvalidArgument, "%s", kNotInitialized);
  if (config.blocking != kConfigUndefined && config.blocking != 0 && config.blocking != 1)
    return refuse(ncclInvalidArgument, "Invalid config blocking attribute value %d", config.blocking);
  if (config.CTAPolicy == kCtaPolicyZero && nccl_version() < 22900)  // seen with 2.28.9; the variable it takes
    return refuse(ncclInvalidArgument, "Invalid config CTAPolicy attribute value %d", config.CTAPolicy);
  return ncclSuccess;
}

void apply_config(const ncclConfig_t& config, ncclComm* comm) {
  if (config.blocking != kConfigUndefined) comm->blocking = config.blocking != 0;
  if (config.commName) comm->name = config.commName;
  if (config.minCTAs != kConfigUndefined) comm->min_ctas = config.minCTAs;
  if (config.maxCTAs != kConfigUndefined) comm->max_ctas = config.maxCTAs;
  if (config.CTAPolicy != kConfigUndefined) comm->cta_policy = config.CTAPolicy;
}

// The calling thread's device; device 0 where it has none yet, as the CUDA runtime would.
ncclResult_t place(const Driver& loaded, ncclComm* comm) {
  loaded.cuCtxGetCurrent(&comm->context);
  if (!comm->context) {
    CUdevice device = 0;
    if (loaded.cuInit(0) != CUDA_SUCCESS || loaded.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
        loaded.cuDevicePrimaryCtxRetain(&comm->context, device) != CUDA_SUCCESS)
      return refuse(ncclUnhandledCudaError,
                    "no CUDA device. hint: start the job with `powerccl run --emulate <platform>`");
    loaded.cuCtxSetCurrent(comm->context);
  }
  comm->driver = &loaded;
  comm->gpu = loaded.pwe_current_gpu();
  comm->device = loaded.pwe_current_device();
  return comm->gpu < 0 ? ncclUnhandledCudaError : ncclSuccess;
}

// Queues the initialisation on the open group, or carries it out.
ncclResult_t run_or_queue(std::unique_ptr<ncclComm> comm, ncclComm** slot, const Origin& origin,
                          ncclComm* parent = nullptr) {
  InitJob job;
  job.comm = comm.release();
  job.slot = slot;
  job.parent = parent;
  job.origin = origin;
  if (slot) *slot = job.comm;
  group_start();
  group_init(job);
  return group_end();
}

ncclResult_t join(ncclComm** slot, int ranks, const uint8_t* key, int rank, const ncclConfig_t* given,
                  const char* function) {
  if (!slot) return group_error(refuse(ncclInvalidArgument, "%s : newcomm argument is NULL", function));
  *slot = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return group_error(refuse(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks));
  ncclConfig_t config;
  if (const ncclResult_t result = read_config(given, config); result != ncclSuccess) return group_error(result);
  if (settings().valid != ncclSuccess) return group_error(refuse(settings().valid, "%s", settings().complaint.c_str()));
  const Driver* loaded = driver();
  if (!loaded) return group_error(ncclSystemError);
  auto comm = std::make_unique<ncclComm>();
  apply_config(config, comm.get());
  if (const ncclResult_t result = place(*loaded, comm.get()); result != ncclSuccess) return group_error(result);
  Origin origin;
  memcpy(origin.join.key, key, sizeof origin.join.key);
  origin.join.ranks = static_cast<uint32_t>(ranks);
  origin.join.rank = static_cast<uint32_t>(rank);
  origin.join.gpu = static_cast<uint32_t>(comm->gpu);
  origin.join.move_data = moves_data();
  origin.join.settings = settings().wire;
  return run_or_queue(std::move(comm), slot, origin);
}

const uint8_t* key_of(const ncclUniqueId& id) {
  return reinterpret_cast<const uint8_t*>(id.internal);
}

// A child lives on its parent's GPU and is blocking as it is, unless its configuration says otherwise.
std::unique_ptr<ncclComm> child_of(const ncclComm* parent, const ncclConfig_t& config) {
  auto child = std::make_unique<ncclComm>();
  child->driver = parent->driver;
  child->context = parent->context;
  child->gpu = parent->gpu;
  child->device = parent->device;
  child->blocking = parent->blocking;
  child->min_ctas = parent->min_ctas;
  child->max_ctas = parent->max_ctas;
  apply_config(config, child.get());
  return child;
}

void greet() {
  static const bool greeted = [] {
    info("NCCL version 2.28.9: PowerCCL's emulated NCCL, on the GPUs of an emulated server");
    return true;
  }();
  (void)greeted;
}

}  // namespace

NCCL_API(ncclResult_t, GetUniqueId, ncclUniqueId* id) {
  greet();
  if (!id) return refuse(ncclInvalidArgument, "GetUniqueId : uniqueId argument is NULL");
  size_t filled = 0;
  while (filled < sizeof id->internal) {
    const ssize_t got = getrandom(id->internal + filled, sizeof id->internal - filled, 0);
    if (got < 0) return ncclSystemError;
    filled += static_cast<size_t>(got);
  }
  return ncclSuccess;
}

NCCL_API(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
         ncclConfig_t* config) {
  greet();
  return join(comm, ranks, key_of(id), rank, config, "ncclCommInitRankConfig");
}

NCCL_API(ncclResult_t, CommInitRank, ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  greet();
  return join(comm, ranks, key_of(id), rank, nullptr, "ncclCommInitRank");
}

NCCL_API(ncclResult_t, CommInitRankScalable, ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
         ncclConfig_t* config) {
  greet();
  if (!id || ids < 1 || ids > ranks)
    return group_error(
        refuse(ncclInvalidArgument, "improper usage of ncclCommInitRank: nId = %d, nranks=%d", ids, ranks));
  // Several ids spread the load of real rendezvous; here the first names the communicator.
  return join(comm, ranks, key_of(id[0]), rank, config, "ncclCommInitRankScalable");
}

NCCL_API(ncclResult_t, CommInitAll, ncclComm_t* comms, int count, const int* devices) {
  greet();
  const Driver* loaded = driver();
  if (!loaded) return ncclSystemError;
  int available = 0;
  if (loaded->cuInit(0) != CUDA_SUCCESS || loaded->cuDeviceGetCount(&available) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  if (!comms || count < 1) return refuse(ncclInvalidArgument, "Invalid device count requested : %d", count);
  if (!devices && count > available)
    return refuse(ncclUnhandledCudaError, "ncclCommInitAll: %d devices asked for, %d there", count, available);
  std::vector<bool> seen(static_cast<size_t>(available));
  for (int i = 0; i < count; ++i) {
    const int device = devices ? devices[i] : i;
    if (device < 0 || device >= available || seen[static_cast<size_t>(device)])
      return refuse(ncclInvalidUsage, "Invalid device number %d in the list of devices", device);
    seen[static_cast<size_t>(device)] = true;
  }
  ncclUniqueId id;
  if (const ncclResult_t result = pncclGetUniqueId(&id); result != ncclSuccess) return result;
  CUcontext before = nullptr;
  loaded->cuCtxGetCurrent(&before);
  group_start();
  for (int i = 0; i < count; ++i) {
    CUcontext context = nullptr;
    CUdevice device = 0;
    if (loaded->cuDeviceGet(&device, devices ? devices[i] : i) != CUDA_SUCCESS ||
        loaded->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
      group_error(ncclUnhandledCudaError);
      break;
    }
    loaded->cuCtxSetCurrent(context);
    join(&comms[i], count, key_of(id), i, nullptr, "ncclCommInitAll");
  }
  loaded->cuCtxSetCurrent(before);
  return group_end();
}

NCCL_API(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* child_slot, ncclConfig_t* given) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommSplit"); result != ncclSuccess) return group_error(result);
  if (!child_slot || color < kSplitNoColor)
    return group_error(refuse(ncclInvalidArgument,
                              "ncclCommSplit: color must be greater or equal to -1 (got %d), newcomm not NULL", color));
  *child_slot = nullptr;
  if (const ncclResult_t result = ensure_ready(comm); result != ncclSuccess) return group_error(result);
  ncclConfig_t config;
  if (const ncclResult_t result = read_config(given, config); result != ncclSuccess) return group_error(result);
  Origin origin;
  origin.kind = Origin::Kind::kSplit;
  origin.split = {comm->id, static_cast<uint32_t>(comm->rank), color, key, 0};
  return run_or_queue(child_of(comm, config), color == kSplitNoColor ? nullptr : child_slot, origin, comm);
}

NCCL_API(ncclResult_t, CommShrink, ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child_slot,
         ncclConfig_t* given, int flags) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommShrink"); result != ncclSuccess) return group_error(result);
  if (!child_slot || !excluded || excluded_count < 1 || excluded_count >= comm->ranks ||
      (static_cast<unsigned>(flags) & ~kShrinkAbort) != 0)
    return group_error(refuse(ncclInvalidArgument, "ncclCommShrink: invalid list of %d excluded ranks, or flags %d",
                              excluded_count, flags));
  *child_slot = nullptr;
  std::vector<int> gone(excluded, excluded + excluded_count);
  std::sort(gone.begin(), gone.end());
  if (gone.front() < 0 || gone.back() >= comm->ranks || std::adjacent_find(gone.begin(), gone.end()) != gone.end() ||
      std::binary_search(gone.begin(), gone.end(), comm->rank))
    return group_error(refuse(ncclInvalidArgument,
                              "ncclCommShrink: the excluded ranks must be other ranks of the communicator, each once"));
  ncclConfig_t config;
  if (const ncclResult_t result = read_config(given, config); result != ncclSuccess) return group_error(result);
  if ((static_cast<unsigned>(flags) & kShrinkAbort) != 0)
    cancel_operations(comm);
  else if (const ncclResult_t result = ensure_ready(comm); result != ncclSuccess)
    return group_error(result);
  // All who stay know who goes, so they meet under a key made from that.
  Origin origin;
  memset(origin.join.key, 0, sizeof origin.join.key);
  uint64_t words[3] = {comm->hash, static_cast<uint64_t>(comm->shrinks++), 0xcbf29ce484222325ull};
  for (const int rank : gone) words[2] = (words[2] ^ static_cast<uint64_t>(rank)) * 0x100000001b3ull;
  memcpy(origin.join.key, "powerccl-shrink", 15);
  memcpy(origin.join.key + 16, words, sizeof words);
  const auto before = std::lower_bound(gone.begin(), gone.end(), comm->rank) - gone.begin();
  origin.join.ranks = static_cast<uint32_t>(comm->ranks - excluded_count);
  origin.join.rank = static_cast<uint32_t>(comm->rank - before);
  origin.join.gpu = static_cast<uint32_t>(comm->gpu);
  origin.join.move_data = moves_data();
  origin.join.settings = settings().wire;
  return run_or_queue(child_of(comm, config), child_slot, origin);
}

NCCL_API(ncclResult_t, CommFinalize, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (const ncclResult_t result = check_comm(comm, "ncclCommFinalize"); result != ncclSuccess) return result;
  if (const ncclResult_t result = ensure_ready(comm); result != ncclSuccess) return group_error(result);
  if (comm->finalized)
    return group_error(refuse(ncclInvalidArgument, "ncclCommFinalize: the communicator is finalized already"));
  comm->finalized = true;
  drain(comm);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, CommDestroy, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (comm->magic != kCommMagic)
    return refuse(ncclInvalidArgument, "comm %p has already been destroyed", static_cast<void*>(comm));
  if (comm->job) comm->job->join();
  drain(comm);
  tear_down(comm);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, CommAbort, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (const ncclResult_t result = check_comm(comm, "ncclCommAbort"); result != ncclSuccess) return result;
  comm->aborted = true;
  if (comm->job) {
    // A join waits for ranks that may never come.
    for (const InitJob& init : comm->job->inits) {
      if (init.comm != comm || init.origin.kind != Origin::Kind::kJoin) continue;
      comm->driver->pwe_post(static_cast<uint32_t>(CollectiveMessage::kCancelJoin), &init.origin.join,
                             sizeof init.origin.join);
    }
    comm->job->join();
  }
  cancel_operations(comm);
  tear_down(comm);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, CommRevoke, ncclComm_t comm, int flags) {
  if (const ncclResult_t result = check_comm(comm, "ncclCommRevoke"); result != ncclSuccess) return result;
  if (flags != 0) return refuse(ncclInvalidArgument, "ncclCommRevoke: flags must be 0");
  if (comm->revoked) return refuse(ncclInvalidUsage, "ncclCommRevoke: communicator was revoked already");
  comm->revoked = true;
  cancel_operations(comm);
  return ncclSuccess;
}
