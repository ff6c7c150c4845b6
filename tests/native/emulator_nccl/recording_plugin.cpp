// SPDX-License-Identifier: Apache-2.0
// A profiler plugin of every ABI version that writes down what NCCL tells it, a line an event, to $RECORD.<rank>.
//
// RECORD_MASK: the mask of events (default: all). RECORD_FROM: kernel events are asked for inside the API event of
// operations of at least so many elements, and withdrawn inside smaller ones'. RECORD_FAIL: its start fails.
// Compiled with RECORD_ONLY it has that version alone.
#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

#include "abi/nccl_profiler.h"

namespace {

using namespace powerccl::nccl;

std::mutex mutex;
FILE* file = nullptr;
int* mask = nullptr;
int next_number = 0;
long long from = 0;

struct Handle {
  int number;
  uint64_t type;
};

std::deque<Handle> handles;  // kept to the end: NCCL stops CollApi handles again later

const char* thread_name() {
  return getpid() == syscall(SYS_gettid) ? "main" : "other";
}
int number_of(void* handle) {
  return handle ? static_cast<Handle*>(handle)->number : 0;
}

const char* type_name(uint64_t type) {
  switch (type) {
    case kEventGroup:
      return "Group";
    case kEventColl:
      return "Coll";
    case kEventP2p:
      return "P2p";
    case kEventKernelCh:
      return "KernelCh";
    case kEventGroupApi:
      return "GroupApi";
    case kEventCollApi:
      return "CollApi";
    case kEventP2pApi:
      return "P2pApi";
    case kEventKernelLaunch:
      return "KernelLaunch";
    default:
      return "other";
  }
}

std::string details(const EventDescriptor& d) {
  char text[256] = "";
  switch (d.type) {
    case kEventGroupApi:
      snprintf(text, sizeof text, " captured=%d depth=%d", d.group_api.graph_captured, d.group_api.group_depth);
      break;
    case kEventCollApi:
      snprintf(text, sizeof text, " %s count=%zu %s root=%d stream=%d captured=%d", d.coll_api.function,
               d.coll_api.count, d.coll_api.datatype, d.coll_api.root, d.coll_api.stream != nullptr,
               d.coll_api.graph_captured);
      break;
    case kEventP2pApi:
      snprintf(text, sizeof text, " %s count=%zu %s stream=%d captured=%d", d.p2p_api.function, d.p2p_api.count,
               d.p2p_api.datatype, d.p2p_api.stream != nullptr, d.p2p_api.graph_captured);
      break;
    case kEventColl:
      snprintf(text, sizeof text, " %s count=%zu %s root=%d seq=%" PRIu64 " channels=%d warps=%d %s %s",
               d.coll.function, d.coll.count, d.coll.datatype, d.coll.root, d.coll.sequence, d.coll.channels,
               d.coll.warps, d.coll.algorithm, d.coll.protocol);
      break;
    case kEventP2p:
      snprintf(text, sizeof text, " %s count=%zu %s peer=%d", d.p2p.function, d.p2p.count, d.p2p.datatype, d.p2p.peer);
      break;
    case kEventKernelCh:
      snprintf(text, sizeof text, " channel=%d time=%" PRIu64, d.kernel_channel.channel, d.kernel_channel.gpu_timer);
      break;
    default:
      break;
  }
  return text;
}

int start_any(void** handle, const EventDescriptor& d) {
  std::lock_guard lock(mutex);
  if (from > 0 && d.type == kEventCollApi) {
    const int with = 0x1 | 0x2 | 0x40 | 0x100 | 0x200;
    __atomic_store_n(mask, static_cast<long long>(d.coll_api.count) >= from ? with : with & ~0x40, __ATOMIC_RELAXED);
  }
  Handle* made = &handles.emplace_back(Handle{++next_number, d.type});
  fprintf(file, "%s start %s %d parent=%d%s\n", thread_name(), type_name(d.type), made->number, number_of(d.parent),
          details(d).c_str());
  fflush(file);
  *handle = made;
  return 0;
}

[[maybe_unused]] int start_v5(void*, void** handle, EventDescriptor* descriptor) {
  return start_any(handle, *descriptor);
}

[[maybe_unused]] int start_v4(void*, void** handle, EventDescriptor* descriptor) {
  EventDescriptor d = *descriptor;
  d.type &= 0xff;
  return start_any(handle, d);
}

int stop(void* handle) {
  std::lock_guard lock(mutex);
  fprintf(file, "%s stop %s %d\n", thread_name(), type_name(static_cast<Handle*>(handle)->type), number_of(handle));
  fflush(file);
  return 0;
}

int record(void* handle, int state, StateArguments* args) {
  std::lock_guard lock(mutex);
  fprintf(file, "%s state %s %d %d", thread_name(), type_name(static_cast<Handle*>(handle)->type), number_of(handle),
          state);
  if (args) fprintf(file, " time=%" PRIu64, args->gpu_timer);
  fprintf(file, "\n");
  fflush(file);
  return 0;
}

int init_any(int version, void** context, uint64_t comm_id, int* wanted, const char* name, int nodes, int ranks,
             int rank, Logger log) {
  std::lock_guard lock(mutex);
  const char* path = getenv("RECORD");
  if (!path || getenv("RECORD_FAIL")) return 1;
  if (!file) file = fopen((std::string(path) + "." + std::to_string(rank)).c_str(), "w");
  mask = wanted;
  const char* chosen = getenv("RECORD_MASK");
  *mask = chosen ? static_cast<int>(strtol(chosen, nullptr, 0)) : 0xfff;
  if (const char* text = getenv("RECORD_FROM")) from = atoll(text);
  fprintf(file, "%s init v%d comm=%d name=%s nodes=%d ranks=%d rank=%d\n", thread_name(), version, comm_id != 0,
          name ? name : "-", nodes, ranks, rank);
  fflush(file);
  if (log) log(3, 1, __FILE__, __LINE__, "recording plugin v%d of rank %d", version, rank);
  *context = file;
  return 0;
}

template <int kVersion>
int init(void** context, uint64_t comm_id, int* wanted, const char* name, int nodes, int ranks, int rank, Logger log) {
  return init_any(kVersion, context, comm_id, wanted, name, nodes, ranks, rank, log);
}
[[maybe_unused]] int init_v4(void** context, int* wanted, const char* name, uint64_t comm_id, int nodes, int ranks,
                             int rank, Logger log) {
  return init_any(4, context, comm_id, wanted, name, nodes, ranks, rank, log);
}

int finalize(void*) {
  std::lock_guard lock(mutex);
  fprintf(file, "%s finalize\n", thread_name());
  fflush(file);
  return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#if !defined(RECORD_ONLY) || RECORD_ONLY == 3
EXPORT ProfilerV4 ncclProfiler_v3;  // there, but of another shape
ProfilerV4 ncclProfiler_v3 = {"recording", init_v4, start_v4, stop, record, finalize};
#endif
#if !defined(RECORD_ONLY) || RECORD_ONLY == 4
EXPORT ProfilerV4 ncclProfiler_v4;
ProfilerV4 ncclProfiler_v4 = {"recording", init_v4, start_v4, stop, record, finalize};
#endif
#if !defined(RECORD_ONLY) || RECORD_ONLY == 5
EXPORT ProfilerV5 ncclProfiler_v5;
ProfilerV5 ncclProfiler_v5 = {"recording", init<5>, start_v5, stop, record, finalize};
#endif
#ifndef RECORD_ONLY
EXPORT ProfilerV5 ncclProfiler_v6;
EXPORT ProfilerV5 ncclProfiler_v7;
ProfilerV5 ncclProfiler_v6 = {"recording", init<6>, start_v5, stop, record, finalize};
ProfilerV5 ncclProfiler_v7 = {"recording", init<7>, start_v5, stop, record, finalize};
#endif
