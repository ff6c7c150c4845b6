// SPDX-License-Identifier: Apache-2.0
// Ranks' kernels: arrival, their way through their tasks, their end.
#include "physics/collective_engine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "physics/tuning.h"

namespace powerccl::physics {
namespace {

bool is_transfer(const CollectiveTask& task) {
  return task.kind == static_cast<uint8_t>(TaskKind::kSend) || task.kind == static_cast<uint8_t>(TaskKind::kReceive);
}

const char* kind_name(uint8_t kind) {
  static constexpr const char* kNames[] = {"AllReduce",     "Broadcast", "Reduce", "AllGather",
                                           "ReduceScatter", "Send",      "Recv"};
  return kind < std::size(kNames) ? kNames[kind] : "unknown";
}

bool valid(const CollectiveTask& task, uint32_t ranks) {
  return task.kind <= static_cast<uint8_t>(TaskKind::kReceive) &&
         task.type <= static_cast<uint8_t>(DataType::kFloat8e5m2) &&
         task.reduction <= static_cast<uint8_t>(Reduction::kPreMulSum) && task.peer >= 0 &&
         static_cast<uint32_t>(task.peer) < ranks;
}

std::string method_name(const CollectiveTask& task) {
  static constexpr const char* kAlgorithmNames[] = {"TREE", "RING", "?", "?", "NVLS", "?", "?", "?"};
  static constexpr const char* kProtocolNames[] = {"LL", "LL128", "SIMPLE", "?"};
  if (task.method == 0) return "the default";
  return std::string(kAlgorithmNames[(task.method >> 4) & 7]) + "/" + kProtocolNames[task.method & 3] + " on " +
         std::to_string(task.channels) + " channels";
}

}  // namespace

double task_bytes(const CollectiveTask& task) {
  return static_cast<double>(task.count) * static_cast<double>(element_bytes(static_cast<DataType>(task.type)));
}

double operation_bytes(const CollectiveTask& task, uint32_t ranks) {
  const auto kind = static_cast<TaskKind>(task.kind);
  const bool per_rank = kind == TaskKind::kAllGather || kind == TaskKind::kReduceScatter;
  return task_bytes(task) * (per_rank ? ranks : 1);
}

CollectiveEngine::CollectiveEngine(Engine& engine) : engine_(engine), load_(engine.platform().gpus) {}
CollectiveEngine::~CollectiveEngine() = default;

void CollectiveEngine::arrived(const Arrival& arrival, Time) {
  auto kernel = std::make_unique<RankKernel>();
  kernel->op = arrival.op;
  const auto payload = arrival.payload;
  if (payload.size() < sizeof(CollectivePlan)) return engine_.finish(arrival.op, kCollectiveInvalidArgument);
  memcpy(&kernel->plan, payload.data(), sizeof(CollectivePlan));
  const CollectivePlan& plan = kernel->plan;
  if (plan.tasks > kMaxTasks || payload.size() < sizeof(CollectivePlan) + plan.tasks * sizeof(CollectiveTask))
    return engine_.finish(arrival.op, kCollectiveInvalidArgument);
  kernel->tasks.resize(plan.tasks);
  memcpy(kernel->tasks.data(), payload.data() + sizeof(CollectivePlan), plan.tasks * sizeof(CollectiveTask));

  Comm* comm = find(plan.comm);
  if (!comm || plan.rank >= comm->size() || comm->ranks[plan.rank].client != arrival.client)
    return engine_.finish(arrival.op, kCollectiveInvalidUsage);
  RankState& state = comm->ranks[plan.rank];
  if (state.life != RankState::Life::kAlive) return engine_.finish(arrival.op, kCollectiveRemoteError);
  if (comm->broken) return engine_.finish(arrival.op, comm->broken);
  for (const CollectiveTask& task : kernel->tasks)
    if (!valid(task, comm->size())) return engine_.finish(arrival.op, kCollectiveInvalidArgument);

  kernel->comm = comm;
  kernel->rank = plan.rank;
  Communication largest;
  for (const CollectiveTask& task : kernel->tasks) {
    if (!is_transfer(task)) {
      const double bytes = operation_bytes(task, comm->size());
      if (bytes <= largest.bytes) continue;
      const Platform& platform = engine_.platform();
      const Pattern pattern = step_pattern(task);
      const Method method = method_of(platform, pattern, bytes, task.method, task.channels);
      largest.bytes = bytes;
      largest.power = power_factor(platform, pattern, bytes, method, default_method(platform, pattern, bytes));
      largest.slows = slowing_factor(platform, pattern, bytes, method);
      largest.as = Truth::operation(static_cast<uint8_t>(pattern), bytes);
      continue;
    }
    const bool send = task.kind == static_cast<uint8_t>(TaskKind::kSend);
    (send ? kernel->send_bytes : kernel->receive_bytes) += task_bytes(task);
    if (static_cast<uint32_t>(task.peer) != plan.rank) ++(send ? kernel->sends : kernel->receives);
  }
  if (const double transferred = std::max(kernel->send_bytes, kernel->receive_bytes); transferred > largest.bytes) {
    const auto first = std::find_if(kernel->tasks.begin(), kernel->tasks.end(), is_transfer);
    const Pattern pattern = transfer_pattern(*kernel, static_cast<size_t>(first - kernel->tasks.begin()));
    // As a trace has it (docs/concepts/patterns.md): what is sent, or else received.
    const double named = kernel->sends > 0 ? kernel->send_bytes : transferred;
    largest = {transferred, 1, 1, Truth::operation(static_cast<uint8_t>(pattern), named)};
  }

  RankKernel& entered = *kernel;
  kernels_[arrival.op] = std::move(kernel);
  state.kernels.push_back(&entered);
  // Alone in its communicator a rank only copies: no kernel of NCCL's runs.
  if (comm->size() > 1) engine_.start(arrival.op, largest);
  advance(entered);
}

void CollectiveEngine::withdrawn(OpId op, Time) {
  const auto entry = kernels_.find(op);
  if (entry == kernels_.end()) return;
  drop(*entry->second);
  kernels_.erase(entry);
}

void CollectiveEngine::advance(RankKernel& kernel) {
  if (kernel.next_task < kernel.tasks.size() && !is_transfer(kernel.tasks[kernel.next_task])) return enter_step(kernel);
  if (kernel.next_task < kernel.tasks.size() && !kernel.in_transfers) return enter_transfers(kernel);
  finish(kernel, kCollectiveOk);
}

void CollectiveEngine::enter_step(RankKernel& kernel) {
  Comm& comm = *kernel.comm;
  const uint64_t index = comm.ranks[kernel.rank].collectives++;
  auto& step = comm.steps[index];
  if (!step) {
    step = std::make_unique<Step>();
    step->index = index;
    step->kernels.resize(comm.size());
  }
  if (const std::string why = disagreement(*step, kernel); !why.empty())
    return break_comm(comm, kCollectiveInvalidUsage, why);
  check_method(*step, kernel);
  task_event(kernel, CommEventKind::kTaskStarted, kernel.next_task);
  step->kernels[kernel.rank] = &kernel;
  if (++step->arrived < comm.size())
    tell_of_missing(comm);
  else if (!step->stuck)
    start_step_flow(comm, *step);
}

// NCCL does not notice: its kernels wait for each other for ever. So do these, but the log says why.
void CollectiveEngine::check_method(Step& step, const RankKernel& kernel) const {
  const Comm& comm = *kernel.comm;
  if (comm.size() == 1) return;
  if (comm.settings.flags & NcclSettings::kHangs) step.stuck = true;
  const auto other =
      std::find_if(step.kernels.begin(), step.kernels.end(), [](const RankKernel* k) { return k != nullptr; });
  if (step.stuck || other == step.kernels.end()) return;
  const CollectiveTask& a = (*other)->tasks[(*other)->next_task];
  const CollectiveTask& b = kernel.tasks[kernel.next_task];
  if (a.method == b.method && a.channels == b.channels) return;
  step.stuck = true;
  fprintf(stderr,
          "powerccl-emulator: ranks disagree: operation %llu of communicator %016llx, %s, rank %u runs %s, rank %u %s; "
          "it hangs, as it would in NCCL\n",
          static_cast<unsigned long long>(step.index), static_cast<unsigned long long>(comm.hash), kind_name(a.kind),
          (*other)->rank, method_name(a).c_str(), kernel.rank, method_name(b).c_str());
}

std::string CollectiveEngine::disagreement(const Step& step, const RankKernel& kernel) const {
  const auto other =
      std::find_if(step.kernels.begin(), step.kernels.end(), [](const RankKernel* k) { return k != nullptr; });
  if (other == step.kernels.end()) return {};
  const CollectiveTask& a = (*other)->tasks[(*other)->next_task];
  const CollectiveTask& b = kernel.tasks[kernel.next_task];
  const auto kind = static_cast<TaskKind>(a.kind);
  const bool reduces = kind == TaskKind::kAllReduce || kind == TaskKind::kReduce || kind == TaskKind::kReduceScatter;
  const bool rooted = kind == TaskKind::kBroadcast || kind == TaskKind::kReduce;
  const bool same = a.kind == b.kind && task_bytes(a) == task_bytes(b) && (!rooted || a.peer == b.peer) &&
                    (!reduces || (a.type == b.type && a.reduction == b.reduction));
  if (same) return {};
  const auto describe = [](uint32_t rank, const CollectiveTask& task) {
    return "rank " + std::to_string(rank) + " " + kind_name(task.kind) + " count " + std::to_string(task.count) +
           " datatype " + std::to_string(task.type) + " op " + std::to_string(task.reduction) + " root " +
           std::to_string(task.peer);
  };
  return "ranks disagree on operation " + std::to_string(step.index) + ": " + describe((*other)->rank, a) + "; " +
         describe(kernel.rank, b);
}

void CollectiveEngine::step_done(Step& step) {
  Comm& comm = *step.kernels.front()->comm;
  std::vector<OpId> ops;
  for (RankKernel* kernel : step.kernels) {
    task_event(*kernel, CommEventKind::kTaskStopped, kernel->next_task);
    ++kernel->next_task;
    ops.push_back(kernel->op);
  }
  comm.steps.erase(step.index);
  // By number: what one kernel's end lets run may end others.
  for (const OpId op : ops)
    if (const auto entry = kernels_.find(op); entry != kernels_.end()) advance(*entry->second);
}

void CollectiveEngine::enter_transfers(RankKernel& kernel) {
  Comm& comm = *kernel.comm;
  kernel.in_transfers = true;
  const size_t first = kernel.next_task;
  kernel.open_transfers = kernel.tasks.size() - first;
  task_event(kernel, CommEventKind::kTaskStarted, first);
  std::set<std::pair<uint32_t, uint32_t>> touched;
  for (size_t i = first; i < kernel.tasks.size(); ++i) {
    const CollectiveTask& task = kernel.tasks[i];
    const auto peer = static_cast<uint32_t>(task.peer);
    if (task.kind == static_cast<uint8_t>(TaskKind::kSend)) {
      comm.channels[{kernel.rank, peer}].sends.push_back({&kernel, i});
      touched.insert({kernel.rank, peer});
    } else {
      comm.channels[{peer, kernel.rank}].receives.push_back({&kernel, i});
      touched.insert({peer, kernel.rank});
    }
  }
  for (const auto& [source, target] : touched) {
    if (comm.broken) return;
    match(comm, source, target);
  }
  tell_of_missing(comm);
}

void CollectiveEngine::match(Comm& comm, uint32_t source, uint32_t target) {
  auto& channel = comm.channels[{source, target}];
  while (!channel.sends.empty() && !channel.receives.empty()) {
    const auto send = channel.sends.front();
    const auto receive = channel.receives.front();
    const double sent = task_bytes(send.kernel->tasks[send.task]);
    const double expected = task_bytes(receive.kernel->tasks[receive.task]);
    if (sent != expected) {
      return break_comm(comm, kCollectiveInvalidUsage,
                        "rank " + std::to_string(source) + " sends " + std::to_string(static_cast<uint64_t>(sent)) +
                            " bytes to rank " + std::to_string(target) + ", which receives " +
                            std::to_string(static_cast<uint64_t>(expected)));
    }
    channel.sends.pop_front();
    channel.receives.pop_front();
    start_transfer_flow(comm, {send.kernel, send.task, receive.kernel, receive.task});
    if (comm.broken) return;
  }
}

void CollectiveEngine::transfer_done(const Transfer& transfer) {
  const OpId ends[] = {transfer.sender->op, transfer.receiver->op};
  for (const OpId op : ends) {
    const auto entry = kernels_.find(op);
    if (entry == kernels_.end()) continue;
    RankKernel& kernel = *entry->second;
    if (--kernel.open_transfers > 0) continue;
    task_event(kernel, CommEventKind::kTaskStopped, kernel.next_task);
    kernel.next_task = kernel.tasks.size();
    advance(kernel);
  }
}

void CollectiveEngine::task_event(RankKernel& kernel, CommEventKind kind, size_t task) {
  if (!kernel.plan.want_events) return;
  CommEvent event{};
  event.kind = static_cast<uint32_t>(kind);
  event.plan = kernel.plan.plan;
  event.time_ns = static_cast<uint64_t>(engine_.now());
  event.task = static_cast<uint32_t>(task);
  tell(*kernel.comm, kernel.rank, event);
}

void CollectiveEngine::finish(RankKernel& kernel, int32_t result) {
  const OpId op = kernel.op;
  std::erase(kernel.comm->ranks[kernel.rank].kernels, &kernel);
  kernels_.erase(op);
  engine_.finish(op, result);  // may bring the stream's next collective here immediately
}

void CollectiveEngine::cancel(RankKernel& kernel, int32_t result) {
  drop(kernel);
  const OpId op = kernel.op;
  kernels_.erase(op);
  engine_.finish(op, result);
}

void CollectiveEngine::drop(RankKernel& kernel) {
  Comm& comm = *kernel.comm;
  std::erase(comm.ranks[kernel.rank].kernels, &kernel);
  for (auto& [index, step] : comm.steps) {
    if (step->kernels[kernel.rank] != &kernel) continue;
    if (step->flow) cancel_flow(*step->flow);
    step->flow = nullptr;
    step->kernels[kernel.rank] = nullptr;
    --step->arrived;
  }
  std::erase_if(comm.steps, [](const auto& entry) { return entry.second->arrived == 0; });
  for (auto& [ends, channel] : comm.channels) {
    const auto of_kernel = [&](const Comm::Waiting& waiting) { return waiting.kernel == &kernel; };
    std::erase_if(channel.sends, of_kernel);
    std::erase_if(channel.receives, of_kernel);
  }
  std::vector<uint64_t> of_kernel;
  for (const auto& [id, flow] : flows_)
    if (!flow->step && (flow->transfer.sender == &kernel || flow->transfer.receiver == &kernel))
      of_kernel.push_back(id);
  for (const uint64_t id : of_kernel) {
    Flow& flow = *flows_.at(id);
    const Transfer transfer = flow.transfer;
    cancel_flow(flow);
    // The other end waits again, for a rank that will not come.
    auto& channel = comm.channels[{transfer.sender->rank, transfer.receiver->rank}];
    if (transfer.sender != &kernel) channel.sends.push_front({transfer.sender, transfer.send_task});
    if (transfer.receiver != &kernel) channel.receives.push_front({transfer.receiver, transfer.receive_task});
  }
}

}  // namespace powerccl::physics
