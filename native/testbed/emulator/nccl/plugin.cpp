// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/plugin.h"

#include <cstdlib>
#include <cstring>

#include "emulator/nccl/log.h"
#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/plugin_slot.h"

namespace powerccl::emulated_nccl {
namespace {

int newest_of(int version) {
  if (version >= 23100) return 7;
  if (version >= 22900) return 6;
  if (version >= 22800) return 5;
  return version >= 22700 ? 4 : 0;
}

constexpr PluginKind kProfiler = {"profiler",
                                  "NCCL_PROFILER_PLUGIN",
                                  "POWERCCL_EMULATOR_PROFILER_ABI",
                                  "ncclProfiler_v",
                                  4,
                                  7,
                                  newest_of,
                                  "PROFILER/Plugin: Loaded %s (v%d)",
                                  "PROFILER/Plugin: Closing profiler plugin %s"};
constinit PluginSlot slot(kProfiler);
int mask = 0;  // written by the plugin whenever it likes, hence read atomically

// v5 and later; of v4, what both have is at the same place.
const ProfilerV5* v5() {
  return static_cast<const ProfilerV5*>(slot.table());
}
const ProfilerV4* v4() {
  return static_cast<const ProfilerV4*>(slot.table());
}

}  // namespace

int nccl_version() {
  static const int version = [] {
    const char* value = getenv("POWERCCL_EMULATOR_NCCL_VERSION");
    if (!value || !*value) return kNcclVersion;
    char* at = nullptr;
    const long major = strtol(value, &at, 10);
    const long minor = *at == '.' ? strtol(at + 1, &at, 10) : -1;
    const long patch = *at == '.' ? strtol(at + 1, &at, 10) : -1;
    if (major == 2 && minor >= 18 && minor < 100 && patch >= 0 && patch < 100 && *at == '\0') {
      return static_cast<int>(major * 10000 + minor * 100 + patch);
    }
    error("POWERCCL_EMULATOR_NCCL_VERSION=%s is no version. hint: 2.18.1 or later, as 2.21.5; going on with 2.28.9",
          value);
    return kNcclVersion;
  }();
  return version;
}

bool ProfilerPlugin::acquire() {
  return slot.acquire();
}
void ProfilerPlugin::release() {
  slot.release();
}
bool ProfilerPlugin::loaded() {
  return slot.table() != nullptr;
}
int ProfilerPlugin::abi_version() {
  return slot.version();
}
uint64_t ProfilerPlugin::event_mask() {
  return static_cast<unsigned>(__atomic_load_n(&mask, __ATOMIC_RELAXED));
}

int ProfilerPlugin::init(void** context, uint64_t comm_id, const char* comm_name, int ranks, int rank) {
  constexpr int kNodes = 1;
  if (!loaded()) return 0;
  const int failed = abi_version() == 4 ? v4()->init(context, &mask, comm_name, comm_id, kNodes, ranks, rank, &log)
                                        : v5()->init(context, comm_id, &mask, comm_name, kNodes, ranks, rank, &log);
  if (failed) info("Profiler init failed with error '%d'. Continue without profiler.", failed);
  return failed;
}

void ProfilerPlugin::start(void* context, void** handle, const EventDescriptor& descriptor) {
  if (!loaded()) return;
  const int version = abi_version();
  // Exactly the bytes of the plugin's own version, and garbage behind them: a plugin that reads further shows.
  const size_t bytes = descriptor_bytes_of_version(version);
  EventDescriptor copy;
  memset(static_cast<void*>(&copy), 0xee, sizeof copy);
  memcpy(static_cast<void*>(&copy), &descriptor, bytes);
  if (version > 4) {
    v5()->start_event(context, handle, &copy);
    return;
  }
  switch (descriptor.type) {
    case kEventColl:
      copy.parent = descriptor.coll.parent_group;
      break;
    case kEventP2p:
      copy.parent = descriptor.p2p.parent_group;
      break;
    case kEventGroup:
    case kEventKernelCh:
      break;
    default:
      return;  // NCCL swallows what v4 has no word for
  }
  v4()->start_event(context, handle, &copy);
}

void ProfilerPlugin::stop(void* handle) {
  if (loaded()) v5()->stop_event(handle);
}

void ProfilerPlugin::record(void* handle, int state, uint64_t gpu_time_ns) {
  if (!loaded() || (abi_version() == 4 && state != kStateKernelChStop)) return;
  StateArguments args{gpu_time_ns};
  v5()->record_event_state(handle, state, state == kStateKernelChStop ? &args : nullptr);
}

void ProfilerPlugin::finalize(void* context) {
  if (loaded() && context) v5()->finalize(context);
}

}  // namespace powerccl::emulated_nccl
