// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "adapter_fixture.h"

namespace powerccl::test {

using namespace powerccl::nccl;

namespace {
constexpr int kChannels = 4;

EventDescriptor descriptor(uint64_t type, void* parent, int rank) {
  EventDescriptor event = {};
  event.type = type;
  event.parent = parent;
  event.rank = rank;
  return event;
}
}  // namespace

Plugin Plugin::load(int version) {
  Plugin plugin;
  plugin.version = version;
  plugin.library = dlopen(POWERCCL_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
  if (plugin.library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  const std::string symbol = "ncclProfiler_v" + std::to_string(version);
  void* table = dlsym(plugin.library, symbol.c_str());
  if (table == nullptr) std::abort();
  if (version == 4) {
    plugin.v4 = static_cast<const ProfilerV4*>(table);
  } else {
    plugin.table = static_cast<const ProfilerV5*>(table);
  }
  return plugin;
}

int Plugin::start(void* context, void** handle, EventDescriptor* event) const {
  return version == 4 ? v4->start_event(context, handle, event) : table->start_event(context, handle, event);
}
int Plugin::stop(void* handle) const {
  return version == 4 ? v4->stop_event(handle) : table->stop_event(handle);
}
int Plugin::record(void* handle, int state, StateArguments* arguments) const {
  return version == 4 ? v4->record_event_state(handle, state, arguments)
                      : table->record_event_state(handle, state, arguments);
}
int Plugin::finalize(void* context) const {
  return version == 4 ? v4->finalize(context) : table->finalize(context);
}

std::atomic<int> Communicator::mask{0};

Communicator::Communicator(const Plugin& plugin, int ranks, int rank, uint64_t id, const char* name)
    : plugin_(plugin), ranks_(ranks), rank_(rank) {
  int* word = reinterpret_cast<int*>(&mask);
  static_assert(sizeof(mask) == sizeof(int));
  if (plugin.version == 4) {
    plugin.v4->init(&context_, word, name, id, 1, ranks, rank, nullptr);
  } else {
    plugin.table->init(&context_, id, word, name, 1, ranks, rank, nullptr);
  }
}

void Communicator::destroy() {
  if (context_ != nullptr) plugin_.finalize(context_);
  context_ = nullptr;
}

void Communicator::open_group(bool captured) {
  loaded_mask_ = mask.load(std::memory_order_relaxed);
  if (open_) return;
  open_ = true;
  if (plugin_.version == 4 || (loaded_mask_ & ~0) == 0) return;
  EventDescriptor event = descriptor(kEventGroupApi, nullptr, 0);
  event.group_api.graph_captured = captured;
  event.group_api.group_depth = 1;
  plugin_.start(context_, &group_handle_, &event);
}

void Communicator::add_collective(const char* function, size_t count, const char* datatype, int root, bool captured) {
  open_group(captured);
  void* handle = nullptr;
  if (plugin_.version >= 5 && (loaded_mask_ & static_cast<int>(kEventCollApi | kEventColl | kEventKernelCh))) {
    EventDescriptor event = descriptor(kEventCollApi, group_handle_, 0);
    event.coll_api = {function, count, datatype, root, reinterpret_cast<void*>(0x10), captured, user_tag};
    plugin_.start(context_, &handle, &event);
    if (handle != nullptr) plugin_.stop(handle);
  }
  const bool in_bytes = std::string(function) == "AllGather" || std::string(function) == "Broadcast";
  const size_t size = std::string(datatype) == "ncclFloat32" ? 4 : 1;
  tasks_.push_back(
      {function, in_bytes ? count * size : count, in_bytes ? "ncclInt8" : datatype, root, false, loaded_mask_, handle});
  if (captured) captured_ = tasks_;
}

void Communicator::add_point_to_point(const char* function, size_t count, int peer) {
  open_group(false);
  void* handle = nullptr;
  if (plugin_.version >= 5) {
    EventDescriptor event = descriptor(kEventP2pApi, group_handle_, 0);
    event.p2p_api = {function, count, "ncclFloat32", reinterpret_cast<void*>(0x10), false, 0};
    plugin_.start(context_, &handle, &event);
    if (handle != nullptr) plugin_.stop(handle);
  }
  tasks_.push_back({function, count, "ncclFloat32", peer, true, loaded_mask_, handle});
}

KernelOnGpu Communicator::collective(const char* function, size_t count, const char* datatype, int root, bool captured,
                                     void* stream) {
  add_collective(function, count, datatype, root, captured);
  return group_end(stream);
}

KernelOnGpu Communicator::all_to_all(size_t count) {
  for (int peer = 0; peer < ranks_; ++peer) {
    add_send(count, peer);
    add_receive(count, peer);
  }
  return group_end();
}

KernelOnGpu Communicator::group_end(void* stream) {
  if (group_handle_ != nullptr) plugin_.record(group_handle_, kStateGroupEndApiStart, nullptr);
  const std::vector<Task> tasks = tasks_;
  tasks_.clear();
  KernelOnGpu kernel;
  if (!tasks.empty()) kernel = launch(tasks, stream);
  if (group_handle_ != nullptr) plugin_.stop(group_handle_);
  group_handle_ = nullptr;
  open_ = explicit_group_ = false;
  return kernel;
}

KernelOnGpu Communicator::launch(const std::vector<Task>& tasks, void* stream) {
  if (plugin_.version >= 5 && (tasks.front().mask & static_cast<int>(kEventKernelLaunch))) {
    void* handle = nullptr;
    EventDescriptor event = descriptor(kEventKernelLaunch, group_handle_, 0);
    event.kernel_launch.stream = stream != nullptr ? stream : reinterpret_cast<void*>(0x10);
    plugin_.start(context_, &handle, &event);
    if (handle != nullptr) plugin_.stop(handle);
  }
  return enqueue(tasks);
}

KernelOnGpu Communicator::replay() {
  return enqueue(captured_);
}

KernelOnGpu Communicator::enqueue(const std::vector<Task>& tasks) {
  KernelOnGpu kernel;
  kernel.context = context_;
  void* plan = nullptr;
  std::vector<void*> handles;
  if (tasks.front().mask != 0) {
    EventDescriptor event = descriptor(kEventGroup, nullptr, 0);
    plugin_.start(context_, &plan, &event);
  }
  for (const Task& task : tasks) {
    void* handle = nullptr;
    if (task.mask & static_cast<int>(kEventColl | kEventP2p | kEventKernelCh)) {
      EventDescriptor event = descriptor(task.point_to_point ? kEventP2p : kEventColl,
                                         plugin_.version == 4 ? plan : task.api_handle, rank_);
      if (task.point_to_point) {
        event.p2p = {task.function.c_str(),
                     nullptr,
                     task.datatype.c_str(),
                     task.count,
                     task.root_or_peer,
                     kChannels,
                     plugin_.version >= 5 ? plan : nullptr,
                     0};
      } else {
        event.coll = {1,
                      task.function.c_str(),
                      nullptr,
                      nullptr,
                      task.count,
                      task.root_or_peer,
                      task.datatype.c_str(),
                      kChannels,
                      16,
                      "RING",
                      "SIMPLE",
                      plugin_.version >= 5 ? plan : nullptr,
                      nullptr,
                      false,
                      0};
      }
      plugin_.start(context_, &handle, &event);
    }
    handles.push_back(handle);
    if (task.mask & static_cast<int>(kEventKernelCh)) {
      kernel.tasks.push_back(handle);
      kernel.channels.push_back(kChannels);
    }
  }
  for (void* handle : handles) {
    if (handle != nullptr) plugin_.stop(handle);
  }
  if (plan != nullptr) plugin_.stop(plan);
  kernel.mask = tasks.front().mask;
  return kernel;
}

void Communicator::run(const Plugin& plugin, const KernelOnGpu& kernel, uint64_t gpu_start_ns, uint64_t gpu_stop_ns) {
  std::vector<void*> running;
  uint64_t skew = 0;
  for (size_t task = 0; task < kernel.tasks.size(); ++task) {
    for (int channel = 0; channel < kernel.channels[task]; ++channel, ++skew) {
      void* handle = nullptr;
      EventDescriptor event = descriptor(kEventKernelCh, kernel.tasks[task], 0);
      event.kernel_channel.channel = static_cast<uint8_t>(channel);
      event.kernel_channel.gpu_timer = gpu_start_ns + skew;
      plugin.start(kernel.context, &handle, &event);
      running.push_back(handle);
    }
  }
  for (void* handle : running) {
    if (handle == nullptr) continue;
    StateArguments arguments = {};
    arguments.gpu_timer = gpu_stop_ns - --skew;
    plugin.record(handle, kStateKernelChStop, &arguments);
    plugin.stop(handle);
  }
}

}  // namespace powerccl::test
