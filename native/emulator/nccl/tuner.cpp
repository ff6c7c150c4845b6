// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/tuner.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

#include "emulator/nccl/log.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/plugin_open.h"

namespace powerccl::emulated_nccl {
namespace {

constexpr int kOldestAbi = 4;
constexpr int kNewestAbi = 6;

enum class Status { kReady, kLoaded, kFailed };

std::mutex mutex;
Status status = Status::kReady;
int references = 0;
int abi = 0;  // this and the plugin stand still while there are references
void* library = nullptr;
const void* plugin = nullptr;  // TunerV4, TunerV5 or TunerV6

// The newest that a version of NCCL speaks; 0: none of those we do.
int newest_abi_of(int version) {
  if (version >= 23000) return 6;
  if (version >= 22800) return 5;
  return version >= 22400 ? 4 : 0;
}

int newest_abi_spoken() {
  const char* value = getenv("POWERCCL_EMULATOR_TUNER_ABI");
  const int own = newest_abi_of(nccl_version());
  if (!value || !*value) return own;
  const auto asked = static_cast<int>(strtol(value, nullptr, 10));
  if (asked >= kOldestAbi && asked <= kNewestAbi) return asked;
  error("POWERCCL_EMULATOR_TUNER_ABI=%s is not a tuner ABI. hint: use 4, 5 or 6; going on with %d", value, own);
  return own;
}

const char* name_of(const void* found) {
  return static_cast<const TunerV5*>(found)->name;  // all versions begin with it
}

void load() {
  status = Status::kFailed;
  const char* value = getenv("NCCL_TUNER_PLUGIN");
  if (value) {
    info("NCCL_TUNER_PLUGIN set by environment to %s", value);
    if (strcasecmp(value, "none") == 0) return;
  }
  if (newest_abi_spoken() == 0) return;
  library = open_plugin("tuner", value);
  if (!library) return;
  for (int version = newest_abi_spoken(); version >= kOldestAbi; --version) {
    const std::string symbol = "ncclTunerPlugin_v" + std::to_string(version);
    if (const void* found = dlsym(library, symbol.c_str())) {
      abi = version;
      plugin = found;
      status = Status::kLoaded;
      info("TUNER/Plugin: Using %s (v%d)", name_of(found), version);
      return;
    }
  }
  if (value) info("External tuner plugin %s is unsupported", value);
  dlclose(library);
  library = nullptr;
}

const TunerV4* v4() {
  return static_cast<const TunerV4*>(plugin);
}
const TunerV5* v5() {
  return static_cast<const TunerV5*>(plugin);
}

}  // namespace

bool TunerPlugin::acquire() {
  std::lock_guard lock(mutex);
  if (status == Status::kReady) load();
  if (status != Status::kLoaded) return false;
  ++references;
  return true;
}

void TunerPlugin::release() {
  std::lock_guard lock(mutex);
  if (status != Status::kLoaded || --references > 0) return;
  info("TUNER/Plugin: Closing tuner: '%s'", name_of(plugin));
  plugin = nullptr;
  dlclose(library);
  library = nullptr;
  status = Status::kReady;
}

ncclResult_t TunerPlugin::init(void** context, uint64_t comm_id, int ranks, TunerConstants* constants) {
  constexpr size_t kNodes = 1;
  const auto count = static_cast<size_t>(ranks);
  if (abi == 4) return static_cast<ncclResult_t>(v4()->init(count, kNodes, &log, context));
  NvlDomains domains{1, ranks, ranks};
  return static_cast<ncclResult_t>(v5()->init(context, comm_id, count, kNodes, &log, &domains, constants));
}

ncclResult_t TunerPlugin::get_coll_info(void* context, int function, size_t bytes, int pipelined_operations,
                                        CostTable& costs, bool captured, int* channels) {
  const GetCollectiveInfo ask = abi == 4 ? v4()->get_collective_info : v5()->get_collective_info;
  return static_cast<ncclResult_t>(ask(context, function, bytes, pipelined_operations, reinterpret_cast<float**>(costs),
                                       kTunerAlgorithms, kTunerProtocols, captured, channels));
}

ncclResult_t TunerPlugin::get_chunk_size(void* context, int function, size_t bytes, int algorithm, int protocol,
                                         int channels, size_t* chunk_bytes) {
  if (abi < 6) return ncclSuccess;
  const auto* v6 = static_cast<const TunerV6*>(plugin);
  if (!v6->get_chunk_size) return ncclSuccess;
  return static_cast<ncclResult_t>(
      v6->get_chunk_size(context, function, bytes, algorithm, protocol, channels, chunk_bytes));
}

void TunerPlugin::finalize(void* context) {
  const int failed = abi == 4 ? v4()->destroy(context) : v5()->finalize(context);
  if (failed) info("TUNER/Plugin: finalize failed with error '%d'", failed);
}

}  // namespace powerccl::emulated_nccl
