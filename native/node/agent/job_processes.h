// SPDX-License-Identifier: Apache-2.0
// What the job's processes have loaded. If no rank leaves a trace, `powerccl run` finds the cause in it.
//
// The agent looks from outside, in /proc, so that nothing changes in the job. It looks often at first and then ever
// less often, and not at all once a rank has begun a trace. At its end it prints what it has seen to its launcher.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "agent/ticker.h"

namespace powerccl::agent {

// What is known of one process; bits, in the order of the columns of `rows`.
enum ProcessTrait : unsigned {
  kMpi = 1 << 0,       // an MPI library is loaded
  kNccl = 1 << 1,      // NCCL is loaded, or a PyTorch that contains it
  kCuda = 1 << 2,      // the CUDA driver's library is loaded
  kGloo = 1 << 3,      // a thread of PyTorch's process group for gloo runs
  kOurs = 1 << 4,      // a library of PowerCCL is loaded
  kPreload = 1 << 5,   // its environment preloads a library of PowerCCL
  kDynamic = 1 << 6,   // a loader has loaded it
  kReadable = 1 << 7,  // this user may see all of this
};

// The traits of a process. 0: it has ended, or it is a zombie.
unsigned traits_of(pid_t pid);

class JobProcesses {
 public:
  // `launcher`: the process that starts the job.
  JobProcesses(std::string folder, pid_t launcher) : folder_(std::move(folder)), launcher_(launcher) {}
  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;

  int start();  // 0 or an errno
  void ask_to_stop() { stop_.ask(); }
  // False: the thread hangs in a read and uses this object still.
  bool stop();

  // One look at all processes. For the thread, and for tests.
  void look();
  // A line for each program and traits: `process,<program>,<number of processes>,<traits as 0 or 1>...`. Empty once a
  // rank has begun a trace.
  std::string rows() const;

 private:
  struct Process {
    uint64_t start_ticks = 0;
    std::string program;
    unsigned traits = 0;
  };
  void run();
  void visit(pid_t pid);
  bool recorded() const;

  const std::string folder_;
  const pid_t launcher_;
  std::map<pid_t, Process> alive_;
  std::map<std::pair<std::string, unsigned>, unsigned> ended_;  // processes by program and traits
  StopEvent stop_;
  std::promise<void> end_;
  std::thread thread_;
};

}  // namespace powerccl::agent
