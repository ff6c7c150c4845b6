// SPDX-License-Identifier: Apache-2.0
// powerccl-agent: samples this node's GPUs and processors.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "abi/helper.h"
#include "agent/cpu_sampler.h"
#include "agent/job_processes.h"
#include "agent/log.h"
#include "agent/options.h"
#include "agent/sampler.h"
#include "device/process.h"

namespace powerccl::agent {
namespace {

// How often the sampler looks for calls that hang: its usual interval. At double, a GPU that hangs delays the others
// for longer; at half, the agent wakes twice as often for nothing.
constexpr int kWatchMs = 20;

// One agent a node and run folder; several launchers (srun) may each try. The kernel drops the lock with its holder.
enum class NodeLock { kMine, kTaken, kFailed };
NodeLock take_node_lock(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    say("cannot open %s: %s\nhint: check that the run folder exists, is writable and its disk not full", path.c_str(),
        std::strerror(errno));
    return NodeLock::kFailed;
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return NodeLock::kMine;  // open until the process ends
  int number = errno;
  close(fd);
  if (number == EWOULDBLOCK) {
    say("another agent already serves this node and run folder; nothing to do");
    return NodeLock::kTaken;
  }
  say("cannot lock %s: %s\nhint: use a run folder on a file system with flock", path.c_str(), std::strerror(number));
  return NodeLock::kFailed;
}

// SIGTERM and SIGINT become readable, unless a launcher has blocked them; what must not end an agent is ignored. Before
// any thread starts.
int take_signals() {
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  for (int number : {SIGHUP, SIGPIPE, SIGXFSZ, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU}) sigaction(number, &ignore, nullptr);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  powerccl_take_signals(&ending);
  return signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
}

// True once the launcher's end of the pipe is closed, which its death does too.
bool input_ended() {
  char discarded[256];
  ssize_t length = read(STDIN_FILENO, discarded, sizeof discarded);
  return length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR);
}

class Node {
 public:
  Node(const Options& options, int signals)
      : options_(options),
        signals_(signals),
        processes_(std::make_unique<JobProcesses>(options.run_folder, getppid())) {}

  void attend() {
    processes_->start();
    if (options_.sample) start_sampling();
    std::puts("ready");
    std::fflush(stdout);
    while (!end_requested_) wait();
    if (sampler_) sampler_->ask_to_stop();
    if (cpu_sampler_) cpu_sampler_->ask_to_stop();
    stop_sampling();
    tell_processes();
  }

  // Whether a thread is left that never ends.
  bool hangs() const { return hangs_ != nullptr; }

 private:
  // The processors come first: they are read in no time, and NVML may take long to start.
  void start_sampling() {
    cpu_sampler_ = std::make_unique<CpuSampler>(sysfs_root(), options_.interval_ns);
    if (cpu_sampler_->start(sample_path(options_.run_folder, "cpu-")) != 0) cpu_sampler_.reset();
    sampler_ = std::make_unique<Sampler>(sample_path(options_.run_folder, "power-"), options_.interval_ns,
                                         options_.job_environment);
    sampler_->start();
  }

  // A thread that hangs uses its sampler until the process ends. NVML is not shut down: that would wait for such a
  // call.
  void stop_sampling() {
    if (sampler_ && !sampler_->stop()) hangs_ = sampler_.release();
    if (cpu_sampler_ && !cpu_sampler_->stop()) hangs_ = cpu_sampler_.release();
  }

  // What the job's processes have loaded, for the launcher.
  void tell_processes() {
    if (!processes_->stop()) {
      hangs_ = processes_.release();
      return;
    }
    std::fputs(processes_->rows().c_str(), stdout);
    std::fflush(stdout);
  }

  void wait() {
    if (sampler_) sampler_->watch();
    pollfd entries[] = {{signals_, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    poll(entries, 2, sampler_ ? kWatchMs : -1);
    if (entries[0].revents) {
      signalfd_siginfo signal;
      while (read(signals_, &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal)) end_requested_ = true;
    }
    if (entries[1].revents && input_ended()) end_requested_ = true;
  }

  const Options& options_;
  int signals_;
  std::unique_ptr<JobProcesses> processes_;
  std::unique_ptr<CpuSampler> cpu_sampler_;
  std::unique_ptr<Sampler> sampler_;
  const void* hangs_ = nullptr;
  bool end_requested_ = false;
};

}  // namespace

static int attend_node(const Options& options) {
  // Out of the launcher's session: a terminal's ^C or a kill of the job's process group must not take the agent along.
  setsid();
  int signals = take_signals();
  char node[64];
  device::host_identity(node, sizeof node);
  NodeLock lock = take_node_lock(options.run_folder + "/agent-" + node + ".lock");
  if (lock != NodeLock::kMine) return lock == NodeLock::kTaken ? 0 : 1;
  Node agent(options, signals);
  agent.attend();
  // Destructors of this process and of NVML must not run beside a thread that is still in there.
  if (agent.hangs()) _exit(0);
  return 0;
}

}  // namespace powerccl::agent

int main(int argc, char** argv) {
  using namespace powerccl::agent;
  Options options;
  if (const auto code = parse_options(argc, argv, &options)) return *code;
  return attend_node(options);
}
