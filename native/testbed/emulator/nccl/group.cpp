// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/group.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "emulator/nccl/plugin.h"
#include "emulator/nccl/profiler.h"
#include "emulator/nccl/settings.h"

namespace powerccl::emulated_nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<ncclComm*> comms;
  std::vector<InitJob> inits;
};

Group& group() {
  thread_local Group present;
  return present;
}

ncclResult_t run_init(const InitJob& job) {
  bool no_color = false;
  const ncclResult_t result = bring_up(job.comm, job.origin, &no_color);
  if (result == ncclSuccess && !no_color) return ncclSuccess;
  // Non-blocking communicators stay, so that their owner can learn of the failure and abort them.
  if (!job.comm->blocking && job.slot && !no_color) {
    job.comm->async_error = result;
    return result;
  }
  if (job.slot) *job.slot = nullptr;
  delete job.comm;
  return result;
}

ncclResult_t run_inits(const std::vector<InitJob>& inits) {
  if (inits.size() == 1) return run_init(inits.front());
  // Each waits for the other ranks, which may be in this very group.
  std::vector<ncclResult_t> results(inits.size(), ncclSuccess);
  std::vector<std::thread> threads;
  threads.reserve(inits.size());
  for (size_t i = 0; i < inits.size(); ++i) threads.emplace_back([&, i] { results[i] = run_init(inits[i]); });
  for (std::thread& thread : threads) thread.join();
  const auto failed = std::find_if(results.begin(), results.end(), [](ncclResult_t r) { return r != ncclSuccess; });
  return failed == results.end() ? ncclSuccess : *failed;
}

ncclResult_t launch_all(const std::vector<ncclComm*>& comms) {
  if (comms.empty()) return ncclSuccess;
  const bool captured = comms.front()->capturing;
  ncclResult_t result = ncclSuccess;
  if (std::any_of(comms.begin(), comms.end(), [&](const ncclComm* comm) { return comm->capturing != captured; })) {
    warn("Either none or all communicators in a ncclGroup() can be CUDA graph captured.");
    result = ncclInvalidUsage;
  }
  for (ncclComm* comm : comms) {
    if (result == ncclSuccess)
      result = launch(comm);
    else
      discard_queued(comm);
  }
  return result;
}

void run_in_background(std::vector<InitJob> inits, std::vector<ncclComm*> comms) {
  auto job = std::make_shared<GroupJob>();
  job->inits = std::move(inits);
  job->comms = std::move(comms);
  const auto attach = [&](ncclComm* comm) {
    comm->async_error = ncclInProgress;
    comm->job = job;
  };
  for (const InitJob& init : job->inits) {
    if (init.slot) attach(init.comm);  // else it goes as soon as the split has taken place
    if (init.parent) attach(init.parent);
  }
  for (ncclComm* comm : job->comms) attach(comm);
  GroupJob* raw = job.get();
  job->thread = std::thread([raw] {
    const auto settle = [](ncclComm* comm, ncclResult_t result) {
      int expected = ncclInProgress;
      comm->async_error.compare_exchange_strong(expected, result);
    };
    run_inits(raw->inits);
    for (const InitJob& init : raw->inits)
      if (init.parent) settle(init.parent, ncclSuccess);
    const ncclResult_t result = launch_all(raw->comms);
    for (ncclComm* comm : raw->comms) settle(comm, result);
  });
}

ncclResult_t carry_out(std::vector<InitJob> inits, std::vector<ncclComm*> comms) {
  const bool blocking = inits.empty() ? comms.front()->blocking : inits.front().comm->blocking;
  const auto differs = [&](const ncclComm* comm) { return comm->blocking != blocking; };
  if (std::any_of(comms.begin(), comms.end(), differs) ||
      std::any_of(inits.begin(), inits.end(), [&](const InitJob& job) { return differs(job.comm); })) {
    warn("Blocking and nonblocking communicators are not allowed in the same group.");
    for (ncclComm* comm : comms) discard_queued(comm);
    return ncclInvalidUsage;
  }
  if (!blocking) {
    run_in_background(std::move(inits), std::move(comms));
    return ncclInProgress;
  }
  ncclResult_t result = inits.empty() ? ncclSuccess : run_inits(inits);
  if (result != ncclSuccess) {
    for (ncclComm* comm : comms) discard_queued(comm);
    return result;
  }
  return launch_all(comms);
}

}  // namespace

void GroupJob::join() {
  std::call_once(joined, [this] { thread.join(); });
}

int group_depth() {
  return group().depth;
}

ncclResult_t group_start() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t group_error(ncclResult_t result) {
  Group& present = group();
  if (present.depth > 0 && result != ncclSuccess && result != ncclInProgress) present.error = result;
  return result;
}

void group_joined(ncclComm* comm) {
  auto& comms = group().comms;
  if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
}

void group_init(const InitJob& job) {
  group().inits.push_back(job);
}

void group_forget(ncclComm* comm) {
  std::erase(group().comms, comm);
}

ncclResult_t group_end() {
  Group& present = group();
  if (present.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  ApiState& api = api_state();
  if (api.group_depth > 0) --api.group_depth;
  if (api.group_depth == 0) group_api_end_started();
  ncclResult_t result = ncclSuccess;
  if (--present.depth == 0) {
    const std::vector<ncclComm*> comms = std::exchange(present.comms, {});
    std::vector<InitJob> inits = std::exchange(present.inits, {});
    result = std::exchange(present.error, ncclSuccess);
    if (result != ncclSuccess) {
      for (ncclComm* comm : comms) discard_queued(comm);
      for (const InitJob& init : inits) {
        if (init.slot) *init.slot = nullptr;
        delete init.comm;
      }
    } else if (!comms.empty() || !inits.empty()) {
      result = carry_out(std::move(inits), comms);
    }
  }
  group_api_stopped();
  return result;
}

// A communicator's queued tasks become one kernel in a stream.
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
  if (cuda != CUDA_SUCCESS)
    return refuse(ncclUnhandledCudaError, "launching a kernel of communicator %016lx failed with CUresult %d",
                  comm->hash, cuda);
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
