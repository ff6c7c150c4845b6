// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>

#include "emulator/nccl/group.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/profiler.h"
#include "emulator/nccl/settings.h"

namespace powerccl::emulated_nccl {
namespace {

using emulator::kLl;
using emulator::kLl128;
using emulator::kNvls;
using emulator::kRing;
using emulator::kSimple;
using emulator::kTree;

bool available(const ncclComm* comm, Func func, int algorithm, int protocol) {
  const auto function = static_cast<size_t>(func);
  const Settings& given = settings();
  if (!given.algorithm[function][algorithm] || !given.protocol[function][protocol]) return false;
  if (protocol == kLl128 && !comm->has_ll128 && !given.ll128_asked[function]) return false;
  switch (algorithm) {
    case kRing:
      return true;
    case kTree:
      return func == Func::kAllReduce;
    case kNvls:
      return comm->has_nvls && protocol == kSimple && func != Func::kBroadcast && func != Func::kReduce;
    default:
      return false;  // they need more than one node, or a network that reduces
  }
}

// What NCCL believes an operation takes, in us. Ours and deliberately coarse: Ring is always cheapest, with LL up to 32
// KiB of traffic and Simple above. NCCL uses these if nothing is tuned. The server's model of time is more precise, and
// tuning finds the difference.
float cost(const ncclComm* comm, int algorithm, int protocol, size_t traffic_bytes) {
  constexpr double kBytesPerUs[] = {1024, 1536, 2048};
  const double shape = algorithm == kTree ? 1.25 : algorithm == kNvls ? 1.1 : 1;
  const double latency_us = comm->tuner_constants.base_latencies[algorithm][protocol];
  return static_cast<float>(latency_us + shape * static_cast<double>(traffic_bytes) / kBytesPerUs[protocol]);
}

ncclResult_t none_available(const Task& task) {
  const Settings& given = settings();
  warn("Error : no algorithm/protocol available for function %s with datatype %s.%s%s%s%s%s%s", func_name(task.func),
       datatype_name(task.type), given.algorithms_given ? " NCCL_ALGO was set to " : "", given.algorithms_text.c_str(),
       given.algorithms_given ? "." : "", given.protocols_given ? " NCCL_PROTO was set to " : "",
       given.protocols_text.c_str(), given.protocols_given ? "." : "");
  return given.algorithms_given || given.protocols_given ? ncclInvalidUsage : ncclInternalError;
}

void fill(const ncclComm* comm, Func func, size_t traffic_bytes, CostTable& costs) {
  for (int algorithm = 0; algorithm < kTunerAlgorithms; ++algorithm)
    for (int protocol = 0; protocol < kTunerProtocols; ++protocol)
      costs[algorithm][protocol] = available(comm, func, algorithm, protocol)
                                       ? cost(comm, algorithm, protocol, traffic_bytes)
                                       : kCostUnavailable;
}

// The cheapest; of equals the first in the table. False: there is none.
bool pick(const CostTable& costs, Task& task) {
  constexpr float kTooMuch = 3600000000.0f;  // us, an hour: no cost is as high
  float least = kTooMuch;
  for (int algorithm = 0; algorithm < kTunerAlgorithms; ++algorithm) {
    for (int protocol = 0; protocol < kTunerProtocols; ++protocol) {
      const float candidate = costs[algorithm][protocol];
      if (candidate < 0 || candidate >= least) continue;
      least = candidate;
      task.algorithm = static_cast<uint8_t>(algorithm);
      task.protocol = static_cast<uint8_t>(protocol);
    }
  }
  return least < kTooMuch;
}

void put_on_wire(Task& task) {
  const auto carrier = task.way == Way::kCopyEngine ? emulator::Carrier::kCopyEngines
                       : task.way == Way::kPlain    ? emulator::Carrier::kChannels
                       : task.efficient             ? emulator::Carrier::kFewestBlocks
                                                    : emulator::Carrier::kSymmetricKernel;
  task.wire.method = emulator::method_byte(task.algorithm, task.protocol, carrier);
  task.wire.channels = static_cast<uint8_t>(task.channels);
}

// Tasks that NCCL decides about together: the same function, operator and type, within four times the smallest.
using Aggregate = std::vector<Task*>;

std::vector<Aggregate> aggregates(ncclComm* comm) {
  std::map<std::tuple<int, int, int>, Aggregate> kinds;
  for (Task& task : comm->colls)
    kinds[{static_cast<int>(task.func), task.wire.reduction, static_cast<int>(task.type)}].push_back(&task);
  std::vector<Aggregate> made;
  for (auto& [kind, tasks] : kinds) {
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const Task* a, const Task* b) { return a->traffic_bytes < b->traffic_bytes; });
    size_t begin = 0;
    while (begin < tasks.size()) {
      size_t end = begin + 1;
      while (end < tasks.size() && tasks[end]->traffic_bytes < 4 * tasks[begin]->traffic_bytes) ++end;
      made.emplace_back(tasks.begin() + static_cast<std::ptrdiff_t>(begin),
                        tasks.begin() + static_cast<std::ptrdiff_t>(end));
      begin = end;
    }
  }
  return made;
}

ncclResult_t ask_tuner(ncclComm* comm, const Aggregate& tasks) {
  constexpr size_t kLeastPerChannel = 16 * 1024;
  const Task& first = *tasks.front();
  const auto function = static_cast<int>(first.func);
  size_t traffic_bytes = 0;
  for (const Task* task : tasks) traffic_bytes += task->traffic_bytes;
  const size_t bytes = first.func == Func::kAllReduce ? traffic_bytes / 2 : traffic_bytes;
  const auto channels_of_comm = static_cast<size_t>(comm->channels);
  const int pipelined = static_cast<int>((comm->colls.size() + channels_of_comm - 1) / channels_of_comm);
  CostTable costs;
  fill(comm, first.func, traffic_bytes, costs);
  int channels = 0;
  ncclResult_t result =
      TunerPlugin::get_coll_info(comm->tuner_context, function, bytes, pipelined, costs, comm->capturing, &channels);
  if (result != ncclSuccess) return result;
  for (Task* task : tasks) {
    if (!pick(costs, *task)) return none_available(*task);
    if (channels > 0) {
      const size_t most = std::min(channels_of_comm, task->traffic_bytes / kLeastPerChannel);
      task->channels =
          static_cast<int>(std::clamp<size_t>(static_cast<size_t>(channels), 1, std::max<size_t>(most, 1)));
    }
    size_t chunk_bytes = settings().wire.buffer_bytes ? settings().wire.buffer_bytes / 8 : 512 * 1024;
    result = TunerPlugin::get_chunk_size(comm->tuner_context, function, bytes, task->algorithm, task->protocol,
                                         task->channels, &chunk_bytes);
    if (result != ncclSuccess) return result;
    info("%s: %zu bytes of traffic, tuner %s -> %s/%s on %d channels", func_name(task->func), task->traffic_bytes,
         channels > 0 ? "with channels" : "without channels", algorithm_name(*task), protocol_name(*task),
         task->channels);
  }
  return ncclSuccess;
}

}  // namespace

TunerConstants default_constants() {
  constexpr double kLatenciesUs[] = {8, 20, 24};
  TunerConstants constants{};
  for (auto& algorithm : constants.base_latencies)
    std::copy(std::begin(kLatenciesUs), std::end(kLatenciesUs), algorithm);
  return constants;
}

ncclResult_t choose_methods(ncclComm* comm) {
  if (comm->ranks == 1) return ncclSuccess;  // copies
  if (comm->tuned) {
    for (const Aggregate& tasks : aggregates(comm))
      if (const ncclResult_t result = ask_tuner(comm, tasks); result != ncclSuccess) return result;
  } else {
    for (Task& task : comm->colls) {
      CostTable costs;
      fill(comm, task.func, task.traffic_bytes, costs);
      if (!pick(costs, task)) return none_available(task);
    }
  }
  for (Task& task : comm->colls) put_on_wire(task);
  return ncclSuccess;
}

const char* algorithm_name(const Task& task) {
  return task.algorithm == kTree ? "TREE" : task.algorithm == kNvls ? "NVLS" : "RING";
}

const char* protocol_name(const Task& task) {
  return task.protocol == kLl ? "LL" : task.protocol == kLl128 ? "LL128" : "SIMPLE";
}

}  // namespace powerccl::emulated_nccl
