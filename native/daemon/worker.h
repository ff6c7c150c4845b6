// SPDX-License-Identifier: Apache-2.0
// A driver's thread. Device calls take milliseconds and the driver serialises them anyway, so each driver has one
// thread for all its devices; putting a clock back goes before setting another.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/driver.h"

namespace powerccl::daemon {

struct Job {
  enum Kind { kSet, kRestore, kRead } kind = kRead;
  size_t device = 0;  // of the lease table
  size_t index = 0;   // of the driver
  uint32_t min_mhz = 0, max_mhz = 0;
  std::string mark;  // of kRestore
  // Whom to answer, and with what beside the outcome; session 0: nobody.
  uint64_t session = 0, serial = 0, lease = 0;
  uint32_t flags = 0;
};

struct Done {
  Job job;
  Outcome outcome;
};

class Worker {
 public:
  // `bell` is an eventfd that is written to when something is done. `answer` is called on the worker's thread right
  // after a job that somebody waits for: an answer that went through the loop would come a change of threads later.
  using AnswerJob = std::function<void(const Job& job, const Outcome& outcome)>;
  Worker(Driver* driver, const char* name, int bell, AnswerJob answer);
  // Ends the thread behind the call it is in. A call that never returns is not waited for longer than a moment: see
  // abandon().
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add(Job job);
  // What was done since the last call.
  std::vector<Done> take();
  // For a call that hangs in the driver while the process has to end: the thread is left to itself.
  void abandon();

 private:
  void work();

  Driver* driver_;
  int bell_;
  AnswerJob answer_;
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<Job> urgent_, jobs_;
  std::vector<Done> done_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace powerccl::daemon
