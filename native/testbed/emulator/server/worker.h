// SPDX-License-Identifier: Apache-2.0
// A thread for what would keep the server from its clients, as moving a collective's data does.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/messages.h"
#include "physics/interfaces.h"

namespace powerccl::emulator {

class Worker {
 public:
  using Done = std::function<void(Time)>;

  Worker() = default;
  ~Worker();  // behind the job that it is at
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread with the first job. `wake` is an eventfd that is written when a job has ended.
  void add(std::function<void()> job, Done done, int wake);
  // What is to be called for jobs that have ended since the last time, and when they did.
  std::vector<std::pair<Done, Time>> take_ended();

 private:
  void work(int wake);

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ready_;
  bool stops_ = false;
  std::deque<std::pair<std::function<void()>, Done>> jobs_;
  std::vector<std::pair<Done, Time>> ended_;
};

}  // namespace powerccl::emulator
