// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/group.h"

#include <algorithm>
#include <utility>

#include "emulator/nccl/log.h"
#include "emulator/nccl/profiler.h"

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
  if (present.depth == 0) {
    warn("ncclGroupEnd: not in a group call.");
    return ncclInvalidUsage;
  }
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

}  // namespace powerccl::emulated_nccl
