// SPDX-License-Identifier: Apache-2.0
// A communicator's queued tasks become one kernel in a stream.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "emulator/nccl/group.h"
#include "emulator/nccl/log.h"
#include "emulator/nccl/method.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/profiler.h"

namespace powerccl::emulated_nccl {
namespace {

using emulator::CollectivePlan;
using emulator::CollectiveTask;

// Sends and receives in the order of NCCL's rounds: in round r a rank sends r ranks on and receives from r ranks back.
std::vector<Task> in_rounds(const ncclComm& comm, const std::vector<Task>& tasks) {
  std::map<int, std::deque<const Task*>> sends, receives;
  for (const Task& task : tasks) (task.func == Func::kSend ? sends : receives)[task.root].push_back(&task);
  std::vector<Task> ordered;
  const auto take = [&](auto& from, int peer) {
    auto& queue = from[peer];
    if (queue.empty()) return;
    ordered.push_back(*queue.front());
    queue.pop_front();
  };
  while (ordered.size() < tasks.size()) {
    for (int round = 0; round < comm.ranks; ++round) {
      take(sends, (comm.rank + round) % comm.ranks);
      take(receives, (comm.rank - round + comm.ranks) % comm.ranks);
    }
  }
  return ordered;
}

std::vector<std::byte> payload_of(const Plan& plan) {
  const size_t tasks = plan.colls.size() + plan.transfers.size();
  std::vector<std::byte> payload(sizeof(CollectivePlan) + tasks * sizeof(CollectiveTask));
  CollectivePlan head{};
  head.comm = plan.comm->id;
  head.rank = static_cast<uint32_t>(plan.comm->rank);
  head.tasks = static_cast<uint32_t>(tasks);
  head.plan = plan.id;
  head.want_events = wants_kernel_events(plan);
  head.moves_data = plan.comm->driver->pwe_moves_data() != 0;
  memcpy(payload.data(), &head, sizeof head);
  std::byte* at = payload.data() + sizeof head;
  for (const auto* part : {&plan.colls, &plan.transfers}) {
    for (const Task& task : *part) {
      memcpy(at, &task.wire, sizeof task.wire);
      at += sizeof task.wire;
    }
  }
  return payload;
}

// The graph keeps the pointer for as long as it may replay, which is not known: never freed, a few hundred bytes a
// capture.
PersistentPlan& keep_for_ever() {
  static std::mutex mutex;
  static auto* all = new std::vector<std::unique_ptr<PersistentPlan>>;
  std::lock_guard lock(mutex);
  return *all->emplace_back(std::make_unique<PersistentPlan>());
}

// NCCL's host node: before the kernel of each replay. NCCL puts host nodes into a stream of their own, so that they run
// beside the kernels before.
void run_host_node(void* user) {
  auto* persistent = static_cast<PersistentPlan*>(user);
  std::lock_guard lock(persistent->mutex);
  if (persistent->plan) plan_posted(*persistent->plan);
}

CUresult order_behind(const Driver& driver, CUstream later, CUstream earlier) {
  CUevent event = nullptr;
  CUresult result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuEventRecord(event, earlier);
  if (result == CUDA_SUCCESS) result = driver.cuStreamWaitEvent(later, event, 0);
  driver.cuEventDestroy(event);
  return result;
}

// Operations of a communicator run in the order of their launch, whatever streams they are in.
CUresult order_streams_before(ncclComm* comm, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  for (const CUstream other : comm->streams)
    if (other != stream && result == CUDA_SUCCESS) result = order_behind(*comm->driver, stream, other);
  const bool same_world = comm->launched && comm->last_graph == comm->graph;
  if (result == CUDA_SUCCESS && same_world && comm->last_stream != stream)
    result = order_behind(*comm->driver, stream, comm->last_stream);
  return result;
}

ncclResult_t launch_plan(ncclComm* comm, std::unique_ptr<Plan> owned) {
  const Driver& driver = *comm->driver;
  const CUstream stream = comm->streams.back();
  Plan& plan = *owned;
  CUresult cuda = order_streams_before(comm, stream);

  const bool reported = plan.way == Way::kPlain || (plan.way == Way::kSymmetric && nccl_version() >= 23100);
  if (!reported)
    for (Task& task : plan.colls) task.mask &= kEventCeColl;  // no launch, group, task or channel event
  const bool by_host_node = plan.persistent && wants_kernel_events(plan);
  if (plan.persistent) {
    PersistentPlan& persistent = keep_for_ever();
    persistent.plan = std::move(owned);
    comm->persistent_plans.push_back(&persistent);
    if (by_host_node && cuda == CUDA_SUCCESS) cuda = driver.pwe_call_beside(stream, run_host_node, &persistent);
  }

  launch_started(plan, stream);
  if (plan.way == Way::kCopyEngine) copies_started(plan);
  pwe_op op{};
  if (cuda == CUDA_SUCCESS) {
    const std::vector<std::byte> payload = payload_of(plan);
    cuda = driver.pwe_submit(stream, payload.data(), payload.size(), &op);
  }
  launch_stopped(plan);
  if (plan.way == Way::kCopyEngine) copies_stopped(plan);
  if (cuda != CUDA_SUCCESS) {
    warn("launching a kernel of communicator %016lx failed with CUresult %d", comm->hash, cuda);
    return ncclUnhandledCudaError;
  }
  if (!plan.persistent) {
    if (comm->launched && comm->last_op.generation) driver.pwe_op_release(&comm->last_op);
    comm->last_op = op;
  }
  comm->launched = true;
  comm->last_stream = stream;
  comm->last_graph = comm->graph;
  if (!by_host_node) plan_posted(plan);
  for (const CUstream other : comm->streams)
    if (other != stream) order_behind(driver, other, stream);
  return ncclSuccess;
}

}  // namespace

void discard_queued(ncclComm* comm) {
  comm->colls.clear();
  comm->transfers.clear();
  comm->streams.clear();
  comm->capturing = false;
  comm->graph = 0;
}

ncclResult_t launch(ncclComm* comm) {
  ncclResult_t result = ncclSuccess;
  if (!comm->colls.empty() || !comm->transfers.empty()) {
    const CurrentContext context(*comm->driver, comm->context);
    result = choose_methods(comm);
    // NCCL launches what carries most first; equal ones stay in order, so ranks agree.
    std::stable_sort(comm->colls.begin(), comm->colls.end(),
                     [](const Task& a, const Task& b) { return a.traffic_bytes > b.traffic_bytes; });
    std::stable_sort(comm->colls.begin(), comm->colls.end(),
                     [](const Task& a, const Task& b) { return a.way > b.way; });
    std::vector<Task> transfers = in_rounds(*comm, comm->transfers);
    size_t coll = 0, transfer = 0;
    while (result == ncclSuccess && (coll < comm->colls.size() || transfer < transfers.size())) {
      auto plan = std::make_unique<Plan>();
      plan->comm = comm;
      plan->id = comm->next_plan++;
      plan->persistent = comm->capturing;
      size_t room = emulator::kMaxTasks;
      if (coll < comm->colls.size()) plan->way = comm->colls[coll].way;
      for (; coll < comm->colls.size() && comm->colls[coll].way == plan->way && room > 0; --room)
        plan->colls.push_back(comm->colls[coll++]);
      if (plan->way != Way::kPlain) room = 0;
      for (; transfer < transfers.size() && room > 0; --room) plan->transfers.push_back(transfers[transfer++]);
      result = launch_plan(comm, std::move(plan));
    }
  }
  discard_queued(comm);
  return result;
}

}  // namespace powerccl::emulated_nccl
