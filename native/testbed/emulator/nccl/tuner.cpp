// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/tuner.h"

#include "emulator/nccl/log.h"
#include "emulator/nccl/plugin_slot.h"

namespace powerccl::emulated_nccl {
namespace {

int newest_of(int version) {
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
                               newest_of,
                               "TUNER/Plugin: Using %s (v%d)",
                               "TUNER/Plugin: Closing tuner: '%s'"};
constinit PluginSlot slot(kTuner);

const TunerV4* v4() {
  return static_cast<const TunerV4*>(slot.table());
}
const TunerV5* v5() {
  return static_cast<const TunerV5*>(slot.table());
}

}  // namespace

bool TunerPlugin::acquire() {
  return slot.acquire();
}
void TunerPlugin::release() {
  slot.release();
}

ncclResult_t TunerPlugin::init(void** context, uint64_t comm_id, int ranks, TunerConstants* constants) {
  constexpr size_t kNodes = 1;
  const auto count = static_cast<size_t>(ranks);
  if (slot.version() == 4) return static_cast<ncclResult_t>(v4()->init(count, kNodes, &log, context));
  NvlDomains domains{1, ranks, ranks};
  return static_cast<ncclResult_t>(v5()->init(context, comm_id, count, kNodes, &log, &domains, constants));
}

ncclResult_t TunerPlugin::get_coll_info(void* context, int function, size_t bytes, int pipelined_operations,
                                        CostTable& costs, bool captured, int* channels) {
  const GetCollectiveInfo ask = slot.version() == 4 ? v4()->get_collective_info : v5()->get_collective_info;
  return static_cast<ncclResult_t>(ask(context, function, bytes, pipelined_operations, reinterpret_cast<float**>(costs),
                                       kTunerAlgorithms, kTunerProtocols, captured, channels));
}

ncclResult_t TunerPlugin::get_chunk_size(void* context, int function, size_t bytes, int algorithm, int protocol,
                                         int channels, size_t* chunk_bytes) {
  if (slot.version() < 6) return ncclSuccess;
  const auto* v6 = static_cast<const TunerV6*>(slot.table());
  if (!v6->get_chunk_size) return ncclSuccess;
  return static_cast<ncclResult_t>(
      v6->get_chunk_size(context, function, bytes, algorithm, protocol, channels, chunk_bytes));
}

void TunerPlugin::finalize(void* context) {
  const int failed = slot.version() == 4 ? v4()->destroy(context) : v5()->finalize(context);
  if (failed) info("TUNER/Plugin: finalize failed with error '%d'", failed);
}

}  // namespace powerccl::emulated_nccl
