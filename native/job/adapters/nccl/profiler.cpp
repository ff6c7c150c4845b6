// SPDX-License-Identifier: Apache-2.0
// The profiler plugin's function tables: look up, guard, delegate. Nothing but success is ever returned, because NCCL
// passes some of what a plugin returns on to the job.
#include <stdint.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "abi/nccl_profiler.h"
#include "adapters/nccl/adapter.h"
#include "adapters/nccl/chained_profiler.h"
#include "adapters/nccl/cuda.h"
#include "adapters/nccl/enum_names.h"
#include "adapters/nccl/eventless_calls.h"
#include "adapters/nccl/live.h"
#include "adapters/nccl/marks.h"
#include "base/log.h"
#include "base/own_time.h"

namespace powerccl::nccl {

// Whether /dev/shm has room for what NCCL puts there when it is asked for kernel events.
//
// NCCL then starts a proxy for each communicator, whose pool of operations is in /dev/shm. Where that does not fit,
// NCCL 2.27 to 2.30 at least end in a segmentation fault (NVIDIA/nccl#2326); containers have 64 MiB by default.
// Of one rank in one communicator: 64 channels x 32 operations x 72 local ranks of 248 bytes each (NCCL 2.30.7,
// <src/include/proxy.h>), rounded up.
constexpr uint64_t kPoolBytes = uint64_t{36} << 20;

struct ShmRoom {
  uint64_t free_bytes = 0, needed_bytes = 0;
  bool enough = true;  // also if that is not known
};

// `ranks`: on this host, each of which makes pools for so many communicators.
static ShmRoom shm_room(const char* folder, uint32_t ranks, uint32_t communicators) {
  ShmRoom room;
  struct statvfs file_system;
  room.needed_bytes = kPoolBytes * ranks * communicators;
  // A tmpfs without a limit reports no blocks.
  if (statvfs(folder, &file_system) != 0 || file_system.f_blocks == 0) return room;
  room.free_bytes = uint64_t{file_system.f_bavail} * file_system.f_frsize;
  room.enough = room.free_bytes >= room.needed_bytes;
  return room;
}

namespace {

// What is always asked for. v4 knows no API events and has no place to choose per operation.
int base_mask(int version, bool managed) {
  if (version == 4) return kEventGroup | kEventColl | kEventP2p;
  return kEventGroup | kEventGroupApi | kEventCollApi | kEventP2pApi | (version >= 6 ? int{kEventCeColl} : 0) |
         (managed ? int{kEventKernelLaunch} : 0);
}

// Asks for no kernel events where NCCL would crash for want of shared memory.
void look_for_room(Runtime* runtime, const Communicator& communicator, const CommunicatorSeen& seen) {
  const Environment& environment = runtime->environment();
  if (environment.emulated || environment.kernel_events == KernelEvents::kNone) return;
  const auto ranks =
      static_cast<uint32_t>(seen.nnodes > 1 ? (seen.nranks + seen.nnodes - 1) / seen.nnodes : seen.nranks);
  const ShmRoom room = shm_room(environment.shm, ranks, static_cast<uint32_t>(communicator.gpu->communicators));
  if (room.enough) return;
  time_calls_without_kernel_events();
  runtime->selection().others_decide(KernelSelection::Others::kNone);
  static std::atomic<bool> said{false};
  if (said.exchange(true) || !environment.speaks()) return;
  say("give containers more, such as `docker run --ipc=host` or `--shm-size=8g`",
      "%s has %llu MiB free, and NCCL may need %llu MiB there for kernel events and crash without: kernels are timed "
      "with CUDA events instead, some of them",
      environment.shm, static_cast<unsigned long long>(room.free_bytes >> 20),
      static_cast<unsigned long long>(room.needed_bytes >> 20));
}

Communicator* communicator_up(int version, EventMask* mask, const CommunicatorSeen& seen) {
  Runtime* runtime = open_runtime();
  // A second NCCL in this process that speaks another version is not recorded: a trace has one vocabulary.
  // So is one beside an NCCL whose calls the interposed functions have reported.
  if ((plugin_came() && version != plugin_version()) || api_came()) return nullptr;
  set_plugin_came(version);

  Adapter adapter;
  char how[16];
  snprintf(how, sizeof(how), "profiler v%d", version);
  library_text(adapter.library, sizeof(adapter.library), how);
  adapter.sees_calls = version >= 5;
  adapter.ask_kernel_events = want_kernel_events;
  adapter.call_behind = g_cuda.launch_host_func != nullptr ? call_behind : nullptr;
  adapter.open_reader = open_nvml_reader;
  Communicator* communicator = runtime->communicator_up(seen, current_gpu(g_cuda), adapter);
  if (communicator == nullptr) return nullptr;
  communicator->adapter = mask;
  mask->serves_us.store(true, std::memory_order_relaxed);
  if (wanted_events() == 0) want_events(base_mask(version, false));
  if (communicator->gpu->holds_calls()) want_events(base_mask(version, true));
  look_for_room(runtime, *communicator, seen);
  want_kernel_events(nullptr, runtime->selection().asked());
  return communicator;
}

Result init(int version, void** context, int* event_mask, const CommunicatorSeen& seen, Logger log) {
  *context = nullptr;
  if (event_mask == nullptr) return 0;
  Both* both = chain_communicator(version, seen, log);
  pthread_mutex_lock(&g_mutex);
  EventMask* mask = add_to_mask(event_mask);
  Communicator* communicator = mask == nullptr ? nullptr : communicator_up(version, mask, seen);
  if (communicator == nullptr && both == nullptr) remove_from_mask(mask);
  pthread_mutex_unlock(&g_mutex);
  *context = communicator;
  if (both == nullptr) return 0;
  both->own = communicator;
  both->mask = mask;
  *context = context_of(both);
  take_over_chained_mask();
  return 0;
}

Result init_v4(void** context, int* event_mask, const char* name, uint64_t id, int nodes, int ranks, int rank,
               Logger log) {
  return init(4, context, event_mask, {id, name, ranks, rank, nodes}, log);
}

template <int kVersion>
Result init_v5(void** context, uint64_t id, int* event_mask, const char* name, int nodes, int ranks, int rank,
               Logger log) {
  return init(kVersion, context, event_mask, {id, name, ranks, rank, nodes}, log);
}

Result finalize(void* context) {
  Both* both = both_of(context);
  Communicator* communicator = both != nullptr ? both->own : static_cast<Communicator*>(context);
  EventMask* mask = both != nullptr ? both->mask : nullptr;
  if (both != nullptr) unchain_communicator(both);
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  if (runtime != nullptr && communicator != nullptr) {
    marks().finish(communicator);
    live().finish(communicator);
    runtime->communicator_down(communicator);
    mask = static_cast<EventMask*>(communicator->adapter);
    communicator->adapter = nullptr;
  }
  pthread_mutex_lock(&g_mutex);
  remove_from_mask(mask);
  pthread_mutex_unlock(&g_mutex);
  return 0;
}

CallSeen call_seen(const char* function, size_t count, const char* datatype, int root, void* stream, bool captured) {
  const Datatype type = datatype_of(datatype);
  CallSeen seen;
  seen.pattern = pattern_of(function);
  seen.datatype = type.number;
  seen.message_bytes = count * type.bytes;
  // NCCL leaves 0 there for collectives without a root.
  const bool rooted = seen.pattern == POWERCCL_BROADCAST || seen.pattern == POWERCCL_REDUCE ||
                      seen.pattern == POWERCCL_SCATTER || seen.pattern == POWERCCL_GATHER;
  seen.root = rooted ? root : -1;
  seen.stream = reinterpret_cast<uint64_t>(stream);
  seen.captured = captured;
  return seen;
}

// v4's events name no stream; the interposed functions may.
void add_stream(CallSeen* seen) {
  const StreamOfCall present = stream_of_present_call();
  seen->stream = present.handle;
  seen->stream_known = present.known;
}

// False: the task's kernel events are not to be heeded.
template <int kVersion>
bool accept_task(Communicator* communicator, TaskSeen* task) {
  if (kVersion == 4) {
    add_stream(&task->operation);
    return true;
  }
  eventless_call_has_task(communicator, task->call);
  return !communicator->events_distrusted.load(std::memory_order_relaxed);
}

bool is_send(const char* function) {
  return function != nullptr && function[0] == 'S';
}

template <int kVersion>
Handle start_coll(Runtime* runtime, Communicator* communicator, const EventDescriptor& event) {
  const Coll& coll = event.coll;
  TaskSeen task;
  task.call = kVersion >= 5 ? ours_of(event.parent) : 0;
  task.operation = call_seen(coll.function, coll.count, coll.datatype, coll.root, nullptr, false);
  if (!accept_task<kVersion>(communicator, &task)) return 0;
  const bool symmetric = kVersion >= 7 && coll.symmetric;
  if (symmetric) runtime->carried_out(communicator, task.call, POWERCCL_FLAG_SYMMETRIC);
  task.algorithm = symmetric ? uint8_t{POWERCCL_ALGO_SYMMETRIC} : algorithm_of(coll.algorithm);
  task.protocol = protocol_of(coll.protocol);
  task.channels = coll.channels;
  task.warps = coll.warps;
  return runtime->kernel_task(communicator, ours_of(kVersion >= 5 ? coll.parent_group : event.parent), task);
}

template <int kVersion>
Handle start_p2p(Runtime* runtime, Communicator* communicator, const EventDescriptor& event) {
  const P2p& p2p = event.p2p;
  TaskSeen task;
  task.call = kVersion >= 5 ? ours_of(event.parent) : 0;
  task.operation = call_seen(p2p.function, p2p.count, p2p.datatype, -1, nullptr, false);
  task.operation.root = task.peer = p2p.peer;
  if (!accept_task<kVersion>(communicator, &task)) return 0;
  task.point_to_point = true;
  task.send = is_send(p2p.function);
  task.channels = p2p.channels;
  return runtime->kernel_task(communicator, ours_of(kVersion >= 5 ? p2p.parent_group : event.parent), task);
}

template <int kVersion>
Handle start(Runtime* runtime, Communicator* communicator, const EventDescriptor& event) {
  switch (kVersion == 4 ? event.type & 0xff : event.type) {
    case kEventGroup:
      if (kVersion == 4) check_mask_owner(runtime);
      return runtime->kernel_begins(communicator);
    case kEventColl:
      return start_coll<kVersion>(runtime, communicator, event);
    case kEventP2p:
      return start_p2p<kVersion>(runtime, communicator, event);
    case kEventKernelCh:
      return runtime->channel_starts(ours_of(event.parent), event.kernel_channel.gpu_timer);
    default:
      break;
  }
  if (kVersion == 4) return 0;
  switch (event.type) {
    case kEventGroupApi:
      check_mask_owner(runtime);
      return runtime->group_begins(communicator);
    case kEventCollApi: {
      plugin_reported(communicator);
      const CollApi& api = event.coll_api;
      CallSeen seen = call_seen(api.function, api.count, api.datatype, api.root, api.stream, api.graph_captured);
      if (kVersion >= 7) seen.tag = api.user_tag;
      const bool asked = runtime->selection().asked();
      const Handle call = runtime->collective(communicator, ours_of(event.parent), seen);
      eventless_call_made(communicator, ours_of(event.parent), call, seen, asked);
      return call;
    }
    case kEventP2pApi: {
      plugin_reported(communicator);
      const P2pApi& api = event.p2p_api;
      CallSeen seen = call_seen(api.function, api.count, api.datatype, -1, api.stream, api.graph_captured);
      if (kVersion >= 7) seen.tag = api.user_tag;
      const bool asked = runtime->selection().asked();
      const Handle call = runtime->point_to_point(communicator, ours_of(event.parent), is_send(api.function), seen);
      // What its group exchanges is one call to us, of one kind.
      CallSeen exchange = seen;
      exchange.pattern = POWERCCL_PATTERN_UNKNOWN;
      eventless_call_made(communicator, ours_of(event.parent), call, exchange, asked);
      return call;
    }
    case kEventKernelLaunch:
      return runtime->launch_begins(communicator, ours_of(event.parent), event.kernel_launch.stream);
    case kEventCeColl: {
      if (kVersion < 6) return 0;
      eventless_call_is_copied(ours_of(event.parent));
      return runtime->copy_begins(communicator, ours_of(event.parent), event.ce_coll.stream);
    }
    default:
      return 0;
  }
}

// With another profiler the mask is that of both: what only they have asked for is not for us.
template <int kVersion>
bool is_for_us(const EventDescriptor& event) {
  return kVersion == 4 || (event.type != kEventColl && event.type != kEventP2p) || we_asked_for(event);
}

template <int kVersion>
Result start_event(void* context, void** handle, EventDescriptor* descriptor) {
  // NCCL reads the handle back whatever is returned, and keeps an old one where none is written.
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  Both* both = both_of(context);
  Communicator* communicator = both == nullptr ? static_cast<Communicator*>(context) : both->own;
  Handle own = 0;
  if (runtime != nullptr && communicator != nullptr && (both == nullptr || is_for_us<kVersion>(*descriptor))) {
    // NCCL reports channels on a thread of its own.
    if ((descriptor->type & kEventKernelCh) != 0) {
      own = start<kVersion>(runtime, communicator, *descriptor);
    } else {
      const OwnTime time(OwnWork::kCalls);
      own = start<kVersion>(runtime, communicator, *descriptor);
    }
  }
  *handle = both != nullptr ? start_chained(*both, kVersion, own, *handle, descriptor)
                            : reinterpret_cast<void*>(own);  // NOLINT(performance-no-int-to-ptr): never followed
  return 0;
}

void stop(Runtime* runtime, Handle own) {
  const HandleKind kind = kind_of(own);
  if (kind != HandleKind::kGroup && kind != HandleKind::kLaunch && kind != HandleKind::kKernel) return;
  const OwnTime time(OwnWork::kCalls);
  if (kind == HandleKind::kGroup) {
    eventless_calls_end(runtime, own, plugin_version() >= 7);
    runtime->group_ends(own);
  } else if (kind == HandleKind::kLaunch) {
    runtime->launch_ends(own);
  } else {
    runtime->kernel_enqueued(own);
  }
}

Result stop_event(void* handle) {
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  if (runtime != nullptr) stop(runtime, ours_of(handle));
  if (is_shared(handle)) stop_chained(handle);
  return 0;
}

Result record_event_state(void* handle, int state, StateArguments* arguments) {
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  const Handle own = ours_of(handle);
  if (runtime != nullptr && own != 0) {
    if (state == kStateKernelChStop && arguments != nullptr) {
      runtime->channel_stops(own, arguments->gpu_timer);
    } else if (state == kStateGroupEndApiStart) {
      const OwnTime time(OwnWork::kCalls);
      runtime->group_ending(own);
    }
  }
  if (is_shared(handle)) record_state_chained(handle, state, arguments);
  return 0;
}

}  // namespace

}  // namespace powerccl::nccl

using namespace powerccl::nccl;

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))
POWERCCL_EXPORT ProfilerV4 ncclProfiler_v4;
POWERCCL_EXPORT ProfilerV5 ncclProfiler_v5;
POWERCCL_EXPORT ProfilerV6 ncclProfiler_v6;
POWERCCL_EXPORT ProfilerV7 ncclProfiler_v7;

ProfilerV4 ncclProfiler_v4 = {"PowerCCL", init_v4, start_event<4>, stop_event, record_event_state, finalize};
ProfilerV5 ncclProfiler_v5 = {"PowerCCL", init_v5<5>, start_event<5>, stop_event, record_event_state, finalize};
ProfilerV6 ncclProfiler_v6 = {"PowerCCL", init_v5<6>, start_event<6>, stop_event, record_event_state, finalize};
ProfilerV7 ncclProfiler_v7 = {"PowerCCL", init_v5<7>, start_event<7>, stop_event, record_event_state, finalize};
