// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/plugin.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/nccl/nccl_abi.h"
#include "emulator/nccl/settings.h"

namespace powerccl::emulated_nccl {
namespace {

bool starts_with(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}
bool ends_with(const std::string& text, const char* suffix) {
  const size_t length = strlen(suffix);
  return text.size() >= length && text.compare(text.size() - length, length, suffix) == 0;
}

void* open_one(const char* kind, const std::string& name) {
  // NCCL compares the length of what was given, so that any leading part of the word counts too.
  const bool in_program = strncasecmp(name.c_str(), "STATIC_PLUGIN", name.size()) == 0;
  void* handle = dlopen(in_program ? nullptr : name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) info("%s/Plugin: %s", kind, dlerror());
  return handle;
}

// The value unchanged, then libnccl-<kind>-<value>.so if it is neither a path nor a library's name; empty:
// libnccl-<kind>.so. Null: not found.
void* open_plugin(const char* kind, const char* value) {
  const std::string asked = value ? value : "";
  const std::string prefix = std::string("libnccl-") + kind;
  if (asked.empty()) return open_one(kind, prefix + ".so");
  if (void* handle = open_one(kind, asked)) return handle;
  const bool path = asked.find('/') != std::string::npos;
  const bool library_name = starts_with(asked, "lib") && ends_with(asked, ".so");
  if (path || library_name) return nullptr;
  return open_one(kind, prefix + "-" + asked + ".so");
}

// Each version of a function table begins with the plugin's name.
const char* name_of(const void* table) {
  return *static_cast<const char* const*>(table);
}

}  // namespace

int PluginSlot::newest_spoken() const {
  const char* value = getenv(kind_.abi_variable);
  const int own = kind_.newest_of(nccl_version());
  if (!value || !*value) return own;
  const auto asked = static_cast<int>(strtol(value, nullptr, 10));
  if (asked >= kind_.oldest && asked <= kind_.newest) return asked;
  error("%s=%s is not a %s ABI. hint: use %d to %d; going on with %d", kind_.abi_variable, value, kind_.name,
        kind_.oldest, kind_.newest, own);
  return own;
}

void PluginSlot::load() {
  failed_ = true;
  const char* value = getenv(kind_.variable);
  if (value) {
    info("%s set by environment to %s", kind_.variable, value);
    if (strcasecmp(value, "none") == 0) return;
  }
  const int newest = newest_spoken();
  if (newest == 0) return;
  library_ = open_plugin(kind_.name, value);
  if (!library_) return;
  for (int version = newest; version >= kind_.oldest; --version) {
    const std::string symbol = kind_.symbol + std::to_string(version);
    if (const void* exported = dlsym(library_, symbol.c_str())) {
      version_.store(version);
      table_.store(exported, std::memory_order_release);
      failed_ = false;
      info(kind_.loaded, name_of(exported), version);
      return;
    }
  }
  if (value) info("External %s plugin %s is unsupported", kind_.name, value);
  dlclose(library_);
  library_ = nullptr;
}

bool PluginSlot::acquire() {
  std::lock_guard lock(mutex_);
  if (!failed_ && !library_) load();
  if (failed_) return false;
  ++references_;
  return true;
}

void PluginSlot::release() {
  std::lock_guard lock(mutex_);
  if (failed_ || --references_ > 0) return;
  info(kind_.closing, name_of(table_.load()));
  table_.store(nullptr, std::memory_order_release);
  dlclose(library_);
  library_ = nullptr;
}

namespace {

int newest_profiler_of(int version) {
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
                                  newest_profiler_of,
                                  "PROFILER/Plugin: Loaded %s (v%d)",
                                  "PROFILER/Plugin: Closing profiler plugin %s"};
constinit PluginSlot profiler_slot(kProfiler);
int mask = 0;  // written by the plugin whenever it likes, hence read atomically

// v5 and later; of v4, what both have is at the same place.
const ProfilerV5* v5() {
  return static_cast<const ProfilerV5*>(profiler_slot.table());
}
const ProfilerV4* v4() {
  return static_cast<const ProfilerV4*>(profiler_slot.table());
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
  return profiler_slot.acquire();
}
void ProfilerPlugin::release() {
  profiler_slot.release();
}
bool ProfilerPlugin::loaded() {
  return profiler_slot.table() != nullptr;
}
int ProfilerPlugin::abi_version() {
  return profiler_slot.version();
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

namespace {

int newest_tuner_of(int version) {
  if (version >= 23000) return 6;
  if (version >= 22800) return 5;
  return version >= 22400 ? 4 : 0;
}

constexpr PluginKind kTuner = {"tuner",
                               "NCCL_TUNER_PLUGIN",
                               "POWERCCL_EMULATOR_TUNER_ABI",
                               "ncclTunerPlugin_v",
                               4,
                               6,
                               newest_tuner_of,
                               "TUNER/Plugin: Using %s (v%d)",
                               "TUNER/Plugin: Closing tuner: '%s'"};
constinit PluginSlot tuner_slot(kTuner);

const TunerV4* tuner_v4() {
  return static_cast<const TunerV4*>(tuner_slot.table());
}
const TunerV5* tuner_v5() {
  return static_cast<const TunerV5*>(tuner_slot.table());
}

}  // namespace

bool TunerPlugin::acquire() {
  return tuner_slot.acquire();
}
void TunerPlugin::release() {
  tuner_slot.release();
}

ncclResult_t TunerPlugin::init(void** context, uint64_t comm_id, int ranks, TunerConstants* constants) {
  constexpr size_t kNodes = 1;
  const auto count = static_cast<size_t>(ranks);
  if (tuner_slot.version() == 4) return static_cast<ncclResult_t>(tuner_v4()->init(count, kNodes, &log, context));
  NvlDomains domains{1, ranks, ranks};
  return static_cast<ncclResult_t>(tuner_v5()->init(context, comm_id, count, kNodes, &log, &domains, constants));
}

ncclResult_t TunerPlugin::get_coll_info(void* context, int function, size_t bytes, int pipelined_operations,
                                        CostTable& costs, bool captured, int* channels) {
  const GetCollectiveInfo ask =
      tuner_slot.version() == 4 ? tuner_v4()->get_collective_info : tuner_v5()->get_collective_info;
  return static_cast<ncclResult_t>(ask(context, function, bytes, pipelined_operations, reinterpret_cast<float**>(costs),
                                       kTunerAlgorithms, kTunerProtocols, captured, channels));
}

ncclResult_t TunerPlugin::get_chunk_size(void* context, int function, size_t bytes, int algorithm, int protocol,
                                         int channels, size_t* chunk_bytes) {
  if (tuner_slot.version() < 6) return ncclSuccess;
  const auto* v6 = static_cast<const TunerV6*>(tuner_slot.table());
  if (!v6->get_chunk_size) return ncclSuccess;
  return static_cast<ncclResult_t>(
      v6->get_chunk_size(context, function, bytes, algorithm, protocol, channels, chunk_bytes));
}

void TunerPlugin::finalize(void* context) {
  const int failed = tuner_slot.version() == 4 ? tuner_v4()->destroy(context) : tuner_v5()->finalize(context);
  if (failed) info("TUNER/Plugin: finalize failed with error '%d'", failed);
}

}  // namespace powerccl::emulated_nccl
