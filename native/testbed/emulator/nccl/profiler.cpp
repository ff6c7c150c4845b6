// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/profiler.h"

#include <pthread.h>

#include <chrono>

#include "emulator/nccl/group.h"
#include "emulator/nccl/plugin.h"
#include "emulator/nccl/settings.h"

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

namespace {

// NCCL reports an event also if only one inside it is asked for.
constexpr bool wants(uint64_t mask, uint64_t event) {
  return (mask & (event | events_inside(event))) != 0;
}

EventDescriptor describe(uint64_t type, void* parent = nullptr, int rank = 0) {
  EventDescriptor descriptor{};
  descriptor.type = type;
  descriptor.parent = parent;
  descriptor.rank = rank;
  return descriptor;
}

// The first task that wants anything speaks for the plan.
const Task* first_masked(const Plan& plan) {
  for (const auto* tasks : {&plan.colls, &plan.transfers})
    for (const Task& task : *tasks)
      if (task.mask) return &task;
  return nullptr;
}

const char* symmetric_kernel(Func func) {
  return func == Func::kAllGather       ? "AllGather_ST"
         : func == Func::kReduceScatter ? "ReduceScatter_LD"
                                        : "AllReduce_RSxLD_AGxST";
}

void start_coll(Plan& plan, Task& task) {
  ncclComm* comm = plan.comm;
  if (wants(task.mask, kEventColl)) {
    EventDescriptor descriptor = describe(kEventColl, task.api_handle, comm->rank);
    auto& coll = descriptor.coll;
    coll.sequence = comm->sequence[static_cast<size_t>(task.func)].load(std::memory_order_relaxed);
    coll.function = func_name(task.func);
    coll.send_buffer = task.send_buffer;
    coll.receive_buffer = task.recv_buffer;
    coll.count = task.count;
    coll.root = task.root;
    coll.datatype = datatype_name(task.type);
    coll.channels = static_cast<uint8_t>(task.channels);
    coll.warps = static_cast<uint8_t>(comm->warps);
    const bool symmetric = plan.way == Way::kSymmetric;
    coll.algorithm = symmetric ? nullptr : algorithm_name(task);
    coll.protocol = symmetric ? nullptr : protocol_name(task);
    coll.parent_group = plan.group_handle;
    coll.symmetric = symmetric;
    coll.kernel_variant = symmetric ? symmetric_kernel(task.func) : nullptr;
    ProfilerPlugin::start(comm->profiler_context, &task.handle, descriptor);
  }
  // Captured operations do not count, unless kernel events make NCCL see each replay on every rank.
  const bool seen = ProfilerPlugin::loaded() && (plan.group_handle || task.api_handle) && (task.mask & kEventKernelCh);
  if (!plan.persistent || seen) comm->sequence[static_cast<size_t>(task.func)].fetch_add(1, std::memory_order_relaxed);
}

void start_transfer(Plan& plan, Task& task) {
  if (!wants(task.mask, kEventP2p)) return;
  EventDescriptor descriptor = describe(kEventP2p, task.api_handle, plan.comm->rank);
  auto& p2p = descriptor.p2p;
  p2p.function = func_name(task.func);
  p2p.buffer = task.recv_buffer;
  p2p.datatype = datatype_name(task.type);
  p2p.count = task.count;
  p2p.peer = task.root;
  p2p.channels = static_cast<uint8_t>(task.channels);
  p2p.parent_group = plan.group_handle;
  ProfilerPlugin::start(plan.comm->profiler_context, &task.handle, descriptor);
}

}  // namespace

ApiState& api_state() {
  thread_local ApiState state;
  return state;
}

const char* datatype_name(ncclDataType_t type) {
  // By number. ncclUint8 is unknown in NCCL too.
  constexpr const char* kNames[ncclNumTypes] = {"ncclInt8",    "Unknown",      "ncclInt32",      "ncclUint32",
                                                "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                                "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return type >= ncclInt8 && type < ncclNumTypes ? kNames[type] : "Unknown";
}

void group_api_started(ncclComm* comm, bool captured, int depth) {
  ApiState& state = api_state();
  state.mask = ProfilerPlugin::event_mask();
  if (!ProfilerPlugin::loaded() || !wants(state.mask, kEventGroupApi) || state.group_depth != 0) return;
  EventDescriptor descriptor = describe(kEventGroupApi);
  descriptor.group_api.graph_captured = captured;
  descriptor.group_api.group_depth = depth;
  ProfilerPlugin::start(comm->profiler_context, &state.group_handle, descriptor);
  state.group_depth = depth;
  state.group = ApiState::Group::kStarted;
}

void group_api_start_stopped() {
  ApiState& state = api_state();
  if (state.group != ApiState::Group::kStarted) return;
  state.group = ApiState::Group::kStopped;
  if (state.group_handle) ProfilerPlugin::record(state.group_handle, kStateGroupStartApiStop, 0);
}

void group_api_end_started() {
  ApiState& state = api_state();
  if (state.group != ApiState::Group::kStopped) return;
  state.group = ApiState::Group::kReset;
  if (state.group_handle) ProfilerPlugin::record(state.group_handle, kStateGroupEndApiStart, 0);
}

void group_api_stopped() {
  ApiState& state = api_state();
  if (!state.group_handle || state.group_depth != 0) return;
  ProfilerPlugin::stop(state.group_handle);
  state.group_handle = nullptr;
}

void coll_api_started(ncclComm* comm, const ApiCall& call) {
  ApiState& state = api_state();
  if (!ProfilerPlugin::loaded() || !wants(state.mask, kEventCollApi)) return;
  EventDescriptor descriptor = describe(kEventCollApi, state.group_handle);
  auto& api = descriptor.coll_api;
  api.function = func_name(call.func);
  api.count = call.count;
  api.datatype = datatype_name(call.type);
  api.root = call.root;
  api.stream = call.stream;
  api.graph_captured = call.captured;
  ProfilerPlugin::start(comm->profiler_context, &state.coll_handle, descriptor);
}

// NCCL keeps the handle, and stops it again behind the next operation even if that started none: plugins must bear it.
void coll_api_stopped() {
  if (ProfilerPlugin::loaded() && api_state().coll_handle) ProfilerPlugin::stop(api_state().coll_handle);
}

void p2p_api_started(ncclComm* comm, const ApiCall& call) {
  ApiState& state = api_state();
  if (!ProfilerPlugin::loaded() || !wants(state.mask, kEventP2pApi)) return;
  EventDescriptor descriptor = describe(kEventP2pApi, state.group_handle);
  auto& api = descriptor.p2p_api;
  api.function = func_name(call.func);
  api.count = call.count;
  api.datatype = datatype_name(call.type);
  api.stream = call.stream;
  api.graph_captured = call.captured;
  ProfilerPlugin::start(comm->profiler_context, &state.p2p_handle, descriptor);
}

void p2p_api_stopped() {
  ApiState& state = api_state();
  if (!state.p2p_handle) return;
  ProfilerPlugin::stop(state.p2p_handle);
  state.p2p_handle = nullptr;
}

bool wants_kernel_events(const Plan& plan) {
  if (!ProfilerPlugin::loaded()) return false;
  for (const Task& task : plan.colls)
    if (task.mask & kEventKernelCh) return true;
  for (const Task& task : plan.transfers)
    if ((task.mask & kEventKernelCh) && task.root != plan.comm->rank) return true;
  return false;
}

void launch_started(Plan& plan, CUstream stream) {
  const Task* masked = first_masked(plan);
  if (!masked || !(masked->mask & kEventKernelLaunch)) return;
  EventDescriptor descriptor = describe(kEventKernelLaunch, masked->group_api_handle);
  descriptor.kernel_launch.stream = stream;
  ProfilerPlugin::start(plan.comm->profiler_context, &plan.launch_handle, descriptor);
}

void launch_stopped(Plan& plan) {
  if (!plan.launch_handle) return;
  ProfilerPlugin::stop(plan.launch_handle);
  plan.launch_handle = nullptr;
}

void copies_started(Plan& plan) {
  if (ProfilerPlugin::abi_version() < 6) return;
  for (Task& task : plan.colls) {
    if ((task.mask & kEventCeColl) == 0) continue;
    EventDescriptor descriptor = describe(kEventCeColl, task.api_handle, plan.comm->rank);
    auto& copy = descriptor.ce_coll;
    copy.sequence = plan.comm->sequence[static_cast<size_t>(task.func)].load(std::memory_order_relaxed);
    copy.function = func_name(task.func);
    copy.send_buffer = task.send_buffer;
    copy.receive_buffer = task.recv_buffer;
    copy.count = task.count;
    copy.datatype = datatype_name(task.type);
    copy.sync_strategy = "UC";
    copy.stream = task.stream;
    ProfilerPlugin::start(plan.comm->profiler_context, &task.handle, descriptor);
  }
}

void copies_stopped(Plan& plan) {
  for (Task& task : plan.colls) {
    if (task.handle) ProfilerPlugin::stop(task.handle);
    task.handle = nullptr;
  }
}

void plan_posted(Plan& plan) {
  const Task* masked = first_masked(plan);
  if (masked && wants(masked->mask, kEventGroup))
    ProfilerPlugin::start(plan.comm->profiler_context, &plan.group_handle, describe(kEventGroup));
  for (Task& task : plan.colls) start_coll(plan, task);
  for (Task& task : plan.transfers) start_transfer(plan, task);
  if (wants_kernel_events(plan)) plan.comm->progress->expect(plan);
  for (auto* tasks : {&plan.colls, &plan.transfers}) {
    for (Task& task : *tasks) {
      if (task.handle) ProfilerPlugin::stop(task.handle);
      task.handle = nullptr;
    }
  }
  if (plan.group_handle) ProfilerPlugin::stop(plan.group_handle);
  plan.group_handle = nullptr;
}

}  // namespace powerccl::emulated_nccl
