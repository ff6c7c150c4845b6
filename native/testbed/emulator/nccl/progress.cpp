// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/progress.h"

#include <pthread.h>

#include <chrono>

#include "emulator/nccl/log.h"
#include "emulator/nccl/plugin.h"

namespace powerccl::emulated_nccl {

using emulator::CollectiveMessage;
using emulator::CommEvent;
using emulator::CommEventKind;

Progress::Progress(ncclComm& comm) : comm_(comm), thread_([this] { work(); }) {}

Progress::~Progress() {
  thread_.join();
}

void Progress::expect(const Plan& plan) {
  Run run;
  uint32_t index = 0;
  const auto add = [&](const Task& task, uint32_t at) {
    if (task.mask & kEventKernelCh)
      run.parts.push_back({at, task.handle, std::vector<void*>(static_cast<size_t>(task.channels))});
  };
  for (const Task& task : plan.colls) add(task, index++);
  // The point-to-point tasks of a kernel run side by side: the server reports them once, under the first one's number.
  for (const Task& task : plan.transfers)
    if (task.root != plan.comm->rank) add(task, index);
  run.last_task = plan.transfers.empty() ? index - 1 : index;
  {
    std::lock_guard lock(mutex_);
    plans_[plan.id].push_back(std::move(run));
  }
  expected_.notify_one();
}

void Progress::work() {
  pthread_setname_np(pthread_self(), "NCCL Progress");
  std::vector<CommEvent> events(emulator::kMaxEventsPerReply);
  const emulator::Member member{comm_.id, static_cast<uint32_t>(comm_.rank), 0};
  while (true) {
    size_t bytes = 0;
    int32_t answer = 0;
    const CUresult sent =
        comm_.driver->pwe_request(static_cast<uint32_t>(CollectiveMessage::kPoll), &member, sizeof member,
                                  events.data(), events.size() * sizeof(CommEvent), &bytes, &answer);
    if (sent != CUDA_SUCCESS) {
      if (!comm_.aborted) {
        error("the emulated GPU server is gone; communicator rank %d of %d cannot go on. hint: see its log", comm_.rank,
              comm_.ranks);
        comm_.async_error = ncclSystemError;
      }
      return;
    }
    if (answer != 0) return;
    for (size_t i = 0; i < bytes / sizeof(CommEvent); ++i) {
      if (static_cast<CommEventKind>(events[i].kind) == CommEventKind::kClosed) return;
      handle(events[i]);
    }
  }
}

void Progress::handle(const CommEvent& event) {
  if (static_cast<CommEventKind>(event.kind) == CommEventKind::kError) {
    if (comm_.aborted) return;
    error("communicator %016lx rank %d of %d: %.*s", comm_.hash, comm_.rank, comm_.ranks,
          static_cast<int>(sizeof event.text), event.text);
    comm_.async_error = event.result;
    return;
  }
  std::deque<Run>* runs = runs_of(event.plan);
  if (!runs) return;
  // Events belong to the oldest run; a run ends with its last task's stop. Others only push behind it.
  Run& run = runs->front();
  if (static_cast<CommEventKind>(event.kind) == CommEventKind::kTaskStarted) return started(run, event);
  stopped(run, event);
  if (event.task != run.last_task) return;
  std::lock_guard lock(mutex_);
  runs->pop_front();
  if (runs->empty()) plans_.erase(event.plan);
}

// The kernel may be faster than the thread that launched it and has not raised the task's own events yet.
std::deque<Progress::Run>* Progress::runs_of(uint64_t plan) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return plans_.find(plan) != plans_.end(); };
  if (!expected_.wait_for(lock, std::chrono::seconds(1), there)) return nullptr;
  return &plans_.at(plan);
}

void Progress::started(Run& run, const CommEvent& event) {
  for (Part& part : run.parts) {
    if (part.task != event.task) continue;
    for (size_t channel = 0; channel < part.channels.size(); ++channel) {
      EventDescriptor descriptor{};
      descriptor.type = kEventKernelCh;
      descriptor.parent = part.parent;
      descriptor.kernel_channel.channel = static_cast<uint8_t>(channel);
      descriptor.kernel_channel.gpu_timer = event.time_ns + emulator::kGlobaltimerOffsetNs;
      ProfilerPlugin::start(comm_.profiler_context, &part.channels[channel], descriptor);
    }
  }
}

void Progress::stopped(Run& run, const CommEvent& event) {
  for (Part& part : run.parts) {
    if (part.task != event.task) continue;
    for (void* handle : part.channels) {
      if (!handle) continue;
      ProfilerPlugin::record(handle, kStateKernelChStop, event.time_ns + emulator::kGlobaltimerOffsetNs);
      ProfilerPlugin::stop(handle);
    }
  }
}

}  // namespace powerccl::emulated_nccl
