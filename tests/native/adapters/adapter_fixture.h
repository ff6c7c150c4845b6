// SPDX-License-Identifier: Apache-2.0
// The plugin as NCCL sees it: dlopened, driven through its tables, with a fake libcuda beneath.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/nccl_profiler.h"
#include "child_test.h"

namespace powerccl::test {

// Drives the profiler plugin through its function tables in the order and with the habits of NCCL 2.28 to 2.31 (and
// 2.27 for v4): the event mask is loaded before the API events of the operation it applies to, a handle is used as the
// plugin left it, stop is called where a handle is not null, channels report from another thread.
struct Plugin {
  int version = 0;
  void* library = nullptr;
  const nccl::ProfilerV4* v4 = nullptr;
  const nccl::ProfilerV5* table = nullptr;  // v5 to v7

  // dlopens the plugin as NCCL does and takes the table of `version`.
  static Plugin load(int version);

  int start(void* context, void** handle, nccl::EventDescriptor* event) const;
  int stop(void* handle) const;
  int record(void* handle, int state, nccl::StateArguments* arguments) const;
  int finalize(void* context) const;
};

// A kernel whose channels have yet to report.
struct KernelOnGpu {
  void* context = nullptr;
  std::vector<void*> tasks;  // a handle each, as the plugin gave it
  std::vector<int> channels;
  int mask = 0;
};

class Communicator {
 public:
  static std::atomic<int> mask;  // NCCL has one for all communicators

  Communicator(const Plugin& plugin, int ranks, int rank, uint64_t id = 0xabcdef, const char* name = "world");
  ~Communicator() { destroy(); }
  void destroy();

  void* context() const { return context_; }

  uint64_t user_tag = 0;  // of the collectives to come (v7)

  // One collective by itself. Returns what is then on the GPU.
  KernelOnGpu collective(const char* function, size_t count, const char* datatype = "ncclFloat32", int root = 0,
                         bool captured = false, void* stream = nullptr);

  // A group: begin, parts, end.
  void group_start() { explicit_group_ = true; }
  void add_collective(const char* function, size_t count, const char* datatype = "ncclFloat32", int root = 0,
                      bool captured = false);
  void add_send(size_t count, int peer) { add_point_to_point("Send", count, peer); }
  void add_receive(size_t count, int peer) { add_point_to_point("Recv", count, peer); }
  KernelOnGpu group_end(void* stream = nullptr);

  // ncclAlltoAll and so on, as 2.28 makes them of sends and receives.
  KernelOnGpu all_to_all(size_t count);

  // A captured kernel's replay: launch-time events again, with the handles of old.
  KernelOnGpu replay();

  static void run(const Plugin& plugin, const KernelOnGpu& kernel, uint64_t gpu_start_ns, uint64_t gpu_stop_ns);

 private:
  struct Task {
    std::string function;
    size_t count;
    std::string datatype;
    int root_or_peer;
    bool point_to_point;
    int mask;
    void* api_handle;
  };
  void open_group(bool captured);
  void add_point_to_point(const char* function, size_t count, int peer);
  KernelOnGpu launch(const std::vector<Task>& tasks, void* stream);
  KernelOnGpu enqueue(const std::vector<Task>& tasks);

  const Plugin& plugin_;
  void* context_ = nullptr;
  int ranks_ = 0, rank_ = 0;
  bool explicit_group_ = false, open_ = false;
  void* group_handle_ = nullptr;
  int loaded_mask_ = 0;
  std::vector<Task> tasks_, captured_;
};

struct FakeCuda {
  void* library = dlopen(POWERCCL_FAKE_CUDA_PATH, RTLD_NOW | RTLD_GLOBAL);
  void (*set_device)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_device"));
  void (*set_launch_result)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_launch_result"));
  bool (*run_one)() = reinterpret_cast<bool (*)()>(dlsym(library, "fake_run_one"));
  int (*pending)() = reinterpret_cast<int (*)()>(dlsym(library, "fake_pending"));
  void* (*last_stream)() = reinterpret_cast<void* (*)()>(dlsym(library, "fake_last_stream"));
};

// By version of NCCL's interface.
class Adapter : public ChildTest, public testing::WithParamInterface<int> {};

// What NCCL tells from 2.28 on: the calls themselves.
class ApiAdapter : public Adapter {};

inline std::string name_of_version(const testing::TestParamInfo<int>& version) {
  return "v" + std::to_string(version.param);
}

}  // namespace powerccl::test
