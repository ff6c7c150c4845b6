// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/plugin.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "emulator/nccl/log.h"
#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/plugin_open.h"

namespace powerccl::emulated_nccl {
namespace {

constexpr int kOldestAbi = 4;
constexpr int kNewestAbi = 7;

enum class Status { kReady, kLoaded, kFailed };

std::mutex mutex;
Status status = Status::kReady;
int references = 0;
void* library = nullptr;
std::atomic<const void*> plugin{nullptr};  // ProfilerV4 or ProfilerV5
std::atomic<int> abi{0};
int mask = 0;  // written by the plugin whenever it likes, hence read atomically

// The newest that a version of NCCL speaks; 0: none of those we do.
int newest_abi_of(int version) {
  if (version >= 23100) return 7;
  if (version >= 22900) return 6;
  if (version >= 22800) return 5;
  return version >= 22700 ? 4 : 0;
}

int newest_abi_spoken() {
  const char* value = getenv("POWERCCL_EMULATOR_PROFILER_ABI");
  const int own = newest_abi_of(nccl_version());
  if (!value || !*value) return own;
  const auto asked = static_cast<int>(strtol(value, nullptr, 10));
  if (asked >= kOldestAbi && asked <= kNewestAbi) return asked;
  error("POWERCCL_EMULATOR_PROFILER_ABI=%s is not a profiler ABI. hint: use 4, 5, 6 or 7; going on with %d", value,
        own);
  return own;
}

void load() {
  status = Status::kFailed;
  const char* value = getenv("NCCL_PROFILER_PLUGIN");
  if (value) {
    info("NCCL_PROFILER_PLUGIN set by environment to %s", value);
    if (strcasecmp(value, "none") == 0) return;
  }
  if (newest_abi_spoken() == 0) return;
  library = open_plugin("profiler", value);
  if (!library) return;
  for (int version = newest_abi_spoken(); version >= kOldestAbi; --version) {
    const std::string symbol = "ncclProfiler_v" + std::to_string(version);
    if (void* found = dlsym(library, symbol.c_str())) {
      abi.store(version);
      plugin.store(found, std::memory_order_release);
      status = Status::kLoaded;
      info("PROFILER/Plugin: Loaded %s (v%d)", static_cast<ProfilerV5*>(found)->name, version);
      return;
    }
  }
  if (value) info("External profiler plugin %s is unsupported", value);
  dlclose(library);
  library = nullptr;
}

const ProfilerV5* v5() {
  return static_cast<const ProfilerV5*>(plugin.load(std::memory_order_acquire));
}
const ProfilerV4* v4() {
  return static_cast<const ProfilerV4*>(plugin.load(std::memory_order_acquire));
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
  std::lock_guard lock(mutex);
  if (status == Status::kReady) load();
  if (status != Status::kLoaded) return false;
  ++references;
  return true;
}

void ProfilerPlugin::release() {
  std::lock_guard lock(mutex);
  if (status != Status::kLoaded || --references > 0) return;
  info("PROFILER/Plugin: Closing profiler plugin %s", v5()->name);
  plugin.store(nullptr, std::memory_order_release);
  dlclose(library);
  library = nullptr;
  status = Status::kReady;
}

bool ProfilerPlugin::loaded() {
  return plugin.load(std::memory_order_acquire) != nullptr;
}
int ProfilerPlugin::abi_version() {
  return abi.load();
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
