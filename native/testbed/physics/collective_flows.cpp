// SPDX-License-Identifier: Apache-2.0
// Flows: how long bytes take, at whose clock, and beside whom.
#include <algorithm>
#include <utility>

#include "physics/collective_engine.h"
#include "physics/tuning.h"

namespace powerccl::physics {

namespace {

struct Curve {
  Pattern pattern;
  double bytes;  // NCCL tests' size
};

// The more specific of both ends' shapes, and the size of the operation that has it.
Curve transfer_curve(const Transfer& transfer) {
  const Pattern from = transfer_pattern(*transfer.sender, transfer.send_task);
  const Pattern to = transfer_pattern(*transfer.receiver, transfer.receive_task);
  const auto either = [&](Pattern pattern) { return from == pattern || to == pattern; };
  if (either(Pattern::kAllToAll)) {
    const RankKernel& end = from == Pattern::kAllToAll ? *transfer.sender : *transfer.receiver;
    return {Pattern::kAllToAll, std::max(end.send_bytes, end.receive_bytes)};
  }
  if (either(Pattern::kScatter)) return {Pattern::kScatter, transfer.sender->send_bytes};
  if (either(Pattern::kGather)) return {Pattern::kGather, transfer.receiver->receive_bytes};
  return {Pattern::kSendReceive, task_bytes(transfer.sender->tasks[transfer.send_task])};
}

// On how many hosts a communicator's GPUs are, and how many are on the host with the fewest.
struct Spread {
  uint32_t hosts = 0, adapters = 0;
};

Spread spread_of(const Platform& platform, const std::vector<uint32_t>& gpus) {
  std::vector<uint32_t> on(platform.hosts);
  for (const uint32_t gpu : gpus) ++on[platform.host_of(gpu)];
  Spread spread;
  for (const uint32_t count : on) {
    if (count == 0) continue;
    ++spread.hosts;
    spread.adapters = spread.adapters == 0 ? count : std::min(spread.adapters, count);
  }
  return spread;
}

}  // namespace

// What a rank's group of sends and receives looks like, unless the caller named it.
Pattern transfer_pattern(const RankKernel& kernel, size_t task) {
  const uint8_t named = kernel.tasks[task].pattern;
  if (named < kPatterns) return static_cast<Pattern>(named);
  if (kernel.sends > 1 && kernel.receives > 1) return Pattern::kAllToAll;
  if (kernel.sends > 1) return Pattern::kScatter;
  if (kernel.receives > 1) return Pattern::kGather;
  return Pattern::kSendReceive;
}

Pattern step_pattern(const CollectiveTask& task) {
  switch (static_cast<TaskKind>(task.kind)) {
    case TaskKind::kBroadcast:
      return Pattern::kBroadcast;
    case TaskKind::kReduce:
      return Pattern::kReduce;
    case TaskKind::kAllGather:
      return Pattern::kAllGather;
    case TaskKind::kReduceScatter:
      return Pattern::kReduceScatter;
    default:
      return Pattern::kAllReduce;
  }
}

// Run to run by the communicator's draw, and around it from one operation to the next.
double CollectiveEngine::noise(Comm& comm) const {
  const TuningModel& model = engine_.platform().tune;
  if (!(comm.settings.flags & NcclSettings::kTuned) && !model.noise_always) return 1;
  return comm.run_factor * std::max(0.5, std::normal_distribution<double>(1, model.op_noise)(comm.noise));
}

// How many flows a flow has to share its narrowest point with, itself included.
double CollectiveEngine::share(const Flow& flow, Load GpuLoad::* of) const {
  int most = 1;
  if (flow.exclusive) {
    for (const uint32_t gpu : flow.gpus) {
      const Load& load = load_[gpu].*of;
      most = std::max(most, load.collectives + (load.sends > 0 || load.receives > 0 ? 1 : 0));
    }
    return most;
  }
  const Load& from = load_[flow.source_gpu].*of;
  const Load& to = load_[flow.target_gpu].*of;
  return std::max(1, std::max(from.sends, to.receives) + std::max(from.collectives, to.collectives));
}

void CollectiveEngine::load_changed(const Flow& flow, int by) {
  for (Load GpuLoad::* of : {&GpuLoad::links, &GpuLoad::network}) {
    if (of == &GpuLoad::network && !flow.crosses) break;
    if (flow.exclusive) {
      for (const uint32_t gpu : flow.gpus) (load_[gpu].*of).collectives += by;
    } else {
      (load_[flow.source_gpu].*of).sends += by;
      (load_[flow.target_gpu].*of).receives += by;
    }
  }
  static_assert(kMaxGpus <= 64);  // a bit for each
  for (const uint32_t gpu : flow.gpus) loads_changed_ |= uint64_t{1} << gpu;
  // All that begins at one moment is rerated together.
  if (!looks_at_loads_) engine_.at(engine_.now(), [this](Time) { rerate_flows(); });
  looks_at_loads_ = true;
}

void CollectiveEngine::rerate_flows() {
  looks_at_loads_ = false;
  const uint64_t changed = std::exchange(loads_changed_, 0);
  for (const auto& [id, flow] : flows_) {
    const bool touched =
        std::any_of(flow->gpus.begin(), flow->gpus.end(), [changed](uint32_t gpu) { return changed >> gpu & 1; });
    if (touched && flow->work != 0) engine_.refresh_work(flow->work);
  }
}

void CollectiveEngine::start_step_flow(Comm& comm, Step& step) {
  const uint64_t id = next_flow_++;
  Flow& flow = *(flows_[id] = std::make_unique<Flow>());
  flow.id = id;
  flow.comm = &comm;
  flow.step = &step;
  step.flow = &flow;
  for (const RankState& rank : comm.ranks) flow.gpus.push_back(rank.gpu);
  const CollectiveTask& task = step.kernels.front()->tasks[step.kernels.front()->next_task];
  const uint32_t ranks = comm.size();
  const double bytes = operation_bytes(task, ranks);
  const Platform& platform = engine_.platform();

  flow.open_parts = 1;
  if (ranks == 1) {
    const bool in_place = task.input.allocation == task.output.allocation && task.input.offset == task.output.offset;
    const double copy_ns = in_place ? 0 : platform.copy_launch_us * 1e3 + bytes / platform.copy_device_gbs;
    flow.gpus.clear();  // a copy takes no part of the links
    flow.timer = engine_.at(engine_.now() + static_cast<Time>(copy_ns), [this, id](Time) { part_done(id); });
  } else {
    const Spread spread = spread_of(platform, flow.gpus);
    flow.crosses = spread.hosts > 1;
    load_changed(flow, +1);
    const Pattern pattern = step_pattern(task);
    const Method method = method_of(platform, pattern, bytes, task.method, task.channels);
    flow.work = engine_.start_work(
        flow.gpus, 1.0,
        [this, id, pattern, bytes, ranks, method, spread, settings = comm.settings,
         factor = noise(comm)](std::span<const double> clocks_mhz) {
          const double slowest = *std::min_element(clocks_mhz.begin(), clocks_mhz.end());
          const double ns = tuned_ns(engine_.platform(), pattern, bytes, slowest, ranks, method, settings) * factor;
          const Flow& other = *flows_.at(id);
          const double within_ns = ns * share(other, &GpuLoad::links);
          if (!other.crosses) return 1.0 / within_ns;
          const Platform& on = engine_.platform();
          const double between_ns =
              on.network_ns(pattern, bytes, ranks, spread.hosts, spread.adapters) * share(other, &GpuLoad::network);
          return 1.0 / (std::max(within_ns, between_ns) + on.network_latency_ns(pattern, bytes, spread.hosts));
        },
        [this, id](Time) { work_done(id); });
  }
  std::string error;
  if (start_moving(flow, error)) ++flow.open_parts;
  if (!error.empty()) break_comm(comm, kCollectiveInvalidArgument, error);
}

void CollectiveEngine::start_transfer_flow(Comm& comm, const Transfer& transfer) {
  const uint64_t id = next_flow_++;
  Flow& flow = *(flows_[id] = std::make_unique<Flow>());
  flow.id = id;
  flow.comm = &comm;
  flow.transfer = transfer;
  flow.exclusive = false;
  flow.source_gpu = comm.ranks[transfer.sender->rank].gpu;
  flow.target_gpu = comm.ranks[transfer.receiver->rank].gpu;
  const double bytes = task_bytes(transfer.sender->tasks[transfer.send_task]);
  const uint32_t ranks = comm.size();
  const Platform& platform = engine_.platform();

  flow.open_parts = 1;
  double least_ns = 0;
  if (flow.source_gpu != flow.target_gpu) {
    const Curve curve = transfer_curve(transfer);
    least_ns = platform.patterns[static_cast<size_t>(curve.pattern)].base_latency_us * 1e3;
    flow.crosses = platform.host_of(flow.source_gpu) != platform.host_of(flow.target_gpu);
    if (flow.crosses) least_ns += platform.network_latency_us * 1e3;
    if (bytes > 0) {
      flow.gpus = {flow.source_gpu, flow.target_gpu};
      ++flow.open_parts;
      load_changed(flow, +1);
      flow.work = engine_.start_work(
          flow.gpus, bytes,
          // Most often only the share has changed: the bandwidth at a clock is kept.
          [this, &flow, curve, ranks,
           factor = transfer_factor(platform, curve.bytes, ranks, comm.settings) / noise(comm), at_mhz = 0.0,
           gbs = 0.0](std::span<const double> clocks_mhz) mutable {
            const double slowest = std::min(clocks_mhz[0], clocks_mhz[1]);
            if (slowest != at_mhz) {
              at_mhz = slowest;
              gbs = engine_.platform().bus_bandwidth_gbs(curve.pattern, curve.bytes, slowest, ranks) * factor;
            }
            const double within = gbs / share(flow, &GpuLoad::links);  // GB/s is bytes per ns
            if (!flow.crosses) return within;
            return std::min(within, engine_.platform().network_gbs / share(flow, &GpuLoad::network));
          },
          [this, id](Time) { work_done(id); });
    }
  }
  flow.timer = engine_.at(engine_.now() + static_cast<Time>(least_ns), [this, id](Time) { part_done(id); });
  std::string error;
  if (start_moving(flow, error)) ++flow.open_parts;
  if (!error.empty()) break_comm(comm, kCollectiveInvalidArgument, error);
}

// The links are free again, whether or not the data is there.
void CollectiveEngine::work_done(uint64_t id) {
  Flow& flow = *flows_.at(id);
  flow.work = 0;
  load_changed(flow, -1);
  part_done(id);
}

// Data that are there only after their transfer make everything behind them late: this machine's doing.
void CollectiveEngine::data_done(uint64_t id) {
  const auto entry = flows_.find(id);
  if (entry == flows_.end()) return;
  if (entry->second->open_parts == 1) engine_.data_came_late(engine_.now() - entry->second->part_done_at);
  part_done(id);
}

void CollectiveEngine::part_done(uint64_t id) {
  const auto entry = flows_.find(id);
  if (entry == flows_.end()) return;
  entry->second->part_done_at = engine_.now();
  if (--entry->second->open_parts > 0) return;
  const std::unique_ptr<Flow> flow = std::move(entry->second);
  flows_.erase(entry);
  if (flow->step) {
    flow->step->flow = nullptr;
    step_done(*flow->step);
  } else {
    transfer_done(flow->transfer);
  }
}

void CollectiveEngine::cancel_flow(Flow& flow) {
  const std::unique_ptr<Flow> ended = std::move(flows_.at(flow.id));
  flows_.erase(ended->id);
  if (ended->work) {
    engine_.cancel_work(ended->work);
    load_changed(*ended, -1);
  }
  if (ended->timer) engine_.cancel_timer(ended->timer);
}

}  // namespace powerccl::physics
