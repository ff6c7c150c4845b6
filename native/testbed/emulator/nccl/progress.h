// SPDX-License-Identifier: Apache-2.0
// A communicator's progress thread: NCCL's proxy thread as far as users and plugins can tell.
//
// It waits for the server's messages about this rank. For kernels that started and stopped on the GPU, it raises
// kernel-channel events with the emulated globaltimer. For peers that are gone, it raises asynchronous errors.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

class Progress {
 public:
  explicit Progress(ncclComm& comm);
  ~Progress();  // after leave(), or with the server gone
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The plan's tasks have their handles: their kernel events may come. Once for each replay of a captured plan.
  void expect(const Plan& plan);

 private:
  struct Part {  // a task's kernel events
    uint32_t task;
    void* parent;
    std::vector<void*> channels;  // handles, null where the plugin gave none
  };
  struct Run {  // of a plan
    std::vector<Part> parts;
    uint32_t last_task;
  };
  void work();
  void handle(const emulator::CommEvent& event);
  std::deque<Run>* runs_of(uint64_t plan);  // once there are any; null: no kernel expects them
  void started(Run& run, const emulator::CommEvent& event);
  void stopped(Run& run, const emulator::CommEvent& event);

  ncclComm& comm_;
  std::mutex mutex_;
  std::condition_variable expected_;
  std::unordered_map<uint64_t, std::deque<Run>> plans_;
  std::thread thread_;
};

}  // namespace powerccl::emulated_nccl
