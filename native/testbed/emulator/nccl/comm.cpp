// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/comm.h"

#include <dlfcn.h>

#include <type_traits>

#include "emulator/nccl/group.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/profiler.h"
#include "emulator/nccl/settings.h"

ncclComm::ncclComm() = default;
ncclComm::~ncclComm() = default;

namespace powerccl::emulated_nccl {
namespace {

#define POWERCCL_TEXT2(x) #x
#define POWERCCL_TEXT(x) POWERCCL_TEXT2(x)

bool load(Driver& d) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    error("libcuda.so.1 cannot be loaded: %s. hint: start the job with `powerccl run --emulate <platform>`", dlerror());
    return false;
  }
  bool complete = true;
  const auto find = [&](auto& into, const char* name) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
    if (into) return;
    if (complete)
      error(
          "libcuda.so.1 has no %s: it is not the emulator's. hint: put the emulator's folder first in LD_LIBRARY_PATH",
          name);
    complete = false;
  };
// cuda.h renames functions to their current versions (cuMemAlloc to cuMemAlloc_v2): the text of the expansion is the
// symbol.
#define POWERCCL_FIND(name) find(d.name, POWERCCL_TEXT(name));
  POWERCCL_FIND(pwe_abi)
  if (!complete) return false;
  if (d.pwe_abi() != PWE_ABI) {
    error("libcuda.so.1 and libnccl.so.2 are of different builds of the emulator. hint: reinstall powerccl");
    return false;
  }
  POWERCCL_DRIVER_FUNCTIONS(POWERCCL_FIND)
#undef POWERCCL_FIND
  return complete;
}

}  // namespace

const Driver* driver() {
  static Driver loaded{};
  static const bool usable = load(loaded);
  return usable ? &loaded : nullptr;
}

using emulator::CollectiveMessage;

ncclResult_t check_comm(const ncclComm* comm, const char* function) {
  if (!comm) return refuse(ncclInvalidArgument, "%s : comm argument is NULL", function);
  if (comm->magic != kCommMagic) return refuse(ncclInvalidArgument, "Error: corrupted comm object detected");
  return ncclSuccess;
}

ncclResult_t ensure_ready(ncclComm* comm) {
  if (comm->aborted) return ncclSuccess;  // what follows is cancelled by the server
  const auto state = static_cast<ncclResult_t>(comm->async_error.load());
  if (state == ncclInProgress)
    return refuse(ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  if (comm->job) {
    comm->job->join();
    comm->job.reset();
  }
  return state;
}

namespace {

void leave(const ncclComm* comm) {
  const emulator::Member member{comm->id, static_cast<uint32_t>(comm->rank), 0};
  comm->driver->pwe_post(static_cast<uint32_t>(CollectiveMessage::kLeave), &member, sizeof member);
}

ncclResult_t bring_up_tuner(ncclComm* comm) {
  if (!TunerPlugin::acquire()) return ncclSuccess;
  const ncclResult_t result = TunerPlugin::init(&comm->tuner_context, comm->hash, comm->ranks, &comm->tuner_constants);
  comm->tuned = result == ncclSuccess;
  if (!comm->tuned) TunerPlugin::release();
  return result;
}

}  // namespace

ncclResult_t bring_up(ncclComm* comm, const Origin& origin, bool* no_color) {
  const Driver& driver = *comm->driver;
  const CurrentContext context(driver, comm->context);
  emulator::Joined joined{};
  size_t bytes = 0;
  int32_t answer = 0;
  const bool join = origin.kind == Origin::Kind::kJoin;
  const void* request = join ? static_cast<const void*>(&origin.join) : &origin.split;
  const size_t request_bytes = join ? sizeof origin.join : sizeof origin.split;
  const auto type = static_cast<uint32_t>(join ? CollectiveMessage::kJoin : CollectiveMessage::kSplit);
  const CUresult cuda = driver.pwe_request(type, request, request_bytes, &joined, sizeof joined, &bytes, &answer);
  if (cuda != CUDA_SUCCESS)
    return refuse(ncclSystemError, "the emulated GPU server did not answer (CUresult %d)", cuda);
  if (answer != 0) {
    warn("communicator initialisation failed: %.*s", static_cast<int>(sizeof joined.text), joined.text);
    return static_cast<ncclResult_t>(answer);
  }
  if (joined.comm == 0) {
    *no_color = true;
    return ncclSuccess;
  }
  comm->id = joined.comm;
  comm->hash = joined.hash;
  comm->rank = static_cast<int>(joined.rank);
  comm->ranks = static_cast<int>(joined.ranks);
  comm->channels = channels_of(static_cast<int>(joined.channels), comm->min_ctas, comm->max_ctas);
  const uint32_t threads = settings().wire.threads;
  comm->warps = static_cast<int>(threads == 0 ? joined.warps : threads / 32);
  comm->has_nvls = joined.has_nvls != 0;
  comm->has_ll128 = joined.has_ll128 != 0;
  comm->tuner_constants = default_constants();
  if (const ncclResult_t result = bring_up_tuner(comm); result != ncclSuccess) {
    warn("the tuner plugin's init failed with error %d", result);
    leave(comm);
    return result;
  }
  comm->profiled = ProfilerPlugin::acquire();
  if (comm->profiled)
    ProfilerPlugin::init(&comm->profiler_context, comm->hash, comm->name.empty() ? nullptr : comm->name.c_str(),
                         comm->ranks, comm->rank);
  comm->progress = std::make_unique<Progress>(*comm);
  comm->ready = true;
  info(
      "ncclCommInit comm %p rank %d nranks %d cudaDev %d gpu %d commId 0x%lx - Init COMPLETE (PowerCCL's emulated "
      "NCCL)",
      static_cast<void*>(comm), comm->rank, comm->ranks, comm->device, comm->gpu, comm->hash);
  int expected = ncclInProgress;
  comm->async_error.compare_exchange_strong(expected, ncclSuccess);
  return ncclSuccess;
}

void drain(ncclComm* comm) {
  if (!comm->launched || comm->async_error != ncclSuccess || comm->aborted) return;
  // Replays of a graph are not known one by one.
  if (!comm->persistent_plans.empty() || comm->last_op.generation == 0) {
    const CurrentContext context(*comm->driver, comm->context);
    comm->driver->cuCtxSynchronize();
    return;
  }
  constexpr uint64_t kLookAgainNs = 20'000'000;
  while (comm->async_error == ncclSuccess && !comm->aborted) {
    const int state = comm->driver->pwe_op_wait(&comm->last_op, PWE_STOPPED, kLookAgainNs);
    if (state == PWE_STOPPED || state < 0) return;
  }
}

void cancel_operations(ncclComm* comm) {
  comm->aborted = true;
  if (!comm->ready) return;
  const emulator::Member member{comm->id, static_cast<uint32_t>(comm->rank), 0};
  size_t bytes = 0;
  int32_t answer = 0;
  comm->driver->pwe_request(static_cast<uint32_t>(CollectiveMessage::kAbort), &member, sizeof member, nullptr, 0,
                            &bytes, &answer);
}

void tear_down(ncclComm* comm) {
  if (comm->job) comm->job->join();
  group_forget(comm);
  if (comm->ready) {
    comm->aborted = comm->aborted || comm->async_error != ncclSuccess;
    leave(comm);
    comm->progress.reset();
    if (comm->launched && comm->last_op.generation) comm->driver->pwe_op_release(&comm->last_op);
  }
  for (PersistentPlan* plan : comm->persistent_plans) {
    std::lock_guard lock(plan->mutex);
    plan->plan.reset();
  }
  if (comm->tuned) {
    TunerPlugin::finalize(comm->tuner_context);
    TunerPlugin::release();
  }
  if (comm->profiled) {
    ProfilerPlugin::finalize(comm->profiler_context);
    ProfilerPlugin::release();
  }
  comm->magic = 0;
  delete comm;
}

}  // namespace powerccl::emulated_nccl
