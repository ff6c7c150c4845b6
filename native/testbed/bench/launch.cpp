// SPDX-License-Identifier: Apache-2.0
#include "bench/launch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/cuda_api.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kKillAfterNs = 5'000'000'000;

struct LauncherVariables {
  const char *rank, *ranks, *local_rank, *local_ranks, *job;
};
constexpr LauncherVariables kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_FD"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_JOB_ID"},
};

std::optional<int> number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || value < 0) return std::nullopt;
  return static_cast<int>(value);
}

std::string launch_key(const LauncherVariables& names, int launched_by) {
  // Processes of one launch have one parent, unless each is wrapped (powerccl run); then the job's own name must do.
  // The `powerccl-bench` that prints tables wraps its rank too, and says which process started it.
  std::string key = std::to_string(getuid());
  bool named = false;
  for (const char* name : {names.job, "MASTER_PORT", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || std::strcmp(name, "PMI_FD") == 0) continue;
    named = named || std::strcmp(value, "none") != 0;
    key += std::string("-") + value;
  }
  if (!named) key += "-p" + std::to_string(launched_by > 0 ? launched_by : getppid());
  std::replace_if(key.begin(), key.end(), [](char c) { return std::strchr("/ :\n", c) != nullptr; }, '_');
  return key;
}

std::string fate_of(int status) {
  if (WIFSIGNALED(status)) {
    return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

struct Child {
  pid_t pid;
  int first, count;
  bool alive;
};

Child start_child(const Launch& launch, int first, int count, const sigset_t& old_mask,
                  const std::function<int(int, int, int)>& ranks) {
  const int device = launch.first_device + (first - launch.first_rank);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw Failure(kExitMissing, std::string("fork: ") + std::strerror(errno));
  if (pid > 0) return {pid, first, count, true};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitRankFailed);
  // The supervisor hears the terminal's signals and tells the ranks through the board.
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  if (!launch.threads && std::strcmp(launch.kind, "processes") == 0) {
    const std::string ranks_text = std::to_string(launch.board->ranks());
    const std::string rank_text = std::to_string(first);
    for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, rank_text.c_str(), 1);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, ranks_text.c_str(), 1);
  }
  const int code = ranks(first, count, device);
  std::fflush(nullptr);
  // After a failure, threads may still be inside NCCL's abort: nothing they use may be destroyed under them.
  if (code != kExitOk) _exit(code);
  std::exit(code);
}

void reap(std::vector<Child>& children, Board& board) {
  for (Child& child : children) {
    int status = 0;
    if (!child.alive || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.alive = false;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    std::string who = "rank " + std::to_string(child.first);
    if (child.count > 1)
      who = "the process of ranks " + std::to_string(child.first) + " to " +
            std::to_string(child.first + child.count - 1);
    board.fail(kExitRankFailed, who + " (pid " + std::to_string(child.pid) + ") " + fate_of(status),
               "the other ranks were aborted");
  }
}

}  // namespace

std::optional<LauncherPlace> launcher_place(const Options& options) {
  for (const LauncherVariables& names : kLaunchers) {
    const auto rank = number(names.rank);
    const auto ranks = number(names.ranks);
    if (!rank || !ranks) continue;
    const int local_rank = number(names.local_rank).value_or(*rank);
    const int local_ranks = number(names.local_ranks).value_or(*ranks);
    if (*rank >= *ranks || *ranks > kMaxRanks) {
      throw Failure(kExitUsage, std::string(names.rank) + "=" + std::to_string(*rank) + " and " + names.ranks + "=" +
                                    std::to_string(*ranks) + " do not fit (at most " + std::to_string(kMaxRanks) + ")");
    }
    if (local_ranks < *ranks) {
      throw Failure(
          kExitUsage,
          "the launch spans hosts: " + std::to_string(local_ranks) + " of " + std::to_string(*ranks) +
              " ranks are here",
          "powerccl-bench measures one host, and -g N starts its own ranks there; for several hosts run NCCL tests "
          "under `powerccl run`");
    }
    return LauncherPlace{*rank, *ranks, local_rank, launch_key(names, options.launched_by)};
  }
  return std::nullopt;
}

Launch prepare_launch(const Options& options) {
  // A launcher's variables say nothing about a run that asks for its own ranks, nor where there is only one.
  const auto place = options.gpus == 0 && !options.threads ? launcher_place(options) : std::nullopt;
  if (place && place->ranks > 1) {
    const std::string folder = !options.rendezvous.empty() ? options.rendezvous : "/dev/shm";
    const double patience_s = options.timeout_s > 0 ? options.timeout_s : 300;
    Board* board = Board::meet(folder, place->key, place->ranks, place->rank == 0, patience_s);
    return {"launcher", board, place->rank, 1, false, place->local_rank};
  }
  const int ranks = options.gpus > 0 ? options.gpus : count_devices();
  if (ranks == 0) throw Failure(kExitMissing, "there is no GPU", "CUDA_VISIBLE_DEVICES may hide them");
  if (ranks > kMaxRanks) throw Failure(kExitUsage, "at most " + std::to_string(kMaxRanks) + " ranks");
  return {options.threads ? "threads" : "processes", Board::create(ranks), 0, ranks, options.threads, 0};
}

void supervise(const Launch& launch, const std::function<int(int, int, int)>& ranks,
               const std::function<void()>& lead) {
  Board& board = *launch.board;
  sigset_t watched, old_mask;
  sigemptyset(&watched);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched, number);
  sigprocmask(SIG_BLOCK, &watched, &old_mask);
  std::fflush(nullptr);
  std::vector<Child> children;
  if (launch.threads) {
    children.push_back(start_child(launch, launch.first_rank, launch.local_ranks, old_mask, ranks));
  } else {
    for (int i = 0; i < launch.local_ranks; ++i) {
      children.push_back(start_child(launch, launch.first_rank + i, 1, old_mask, ranks));
    }
  }
  std::thread leader;
  if (launch.leads()) leader = std::thread(lead);

  uint64_t failed_since = 0;
  while (std::any_of(children.begin(), children.end(), [](const Child& child) { return child.alive; })) {
    const timespec pause{0, 50'000'000};
    const int number = sigtimedwait(&watched, nullptr, &pause);
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
      board.fail(128 + number, std::string("interrupted: ") + strsignal(number));
    }
    reap(children, board);
    const uint64_t now = monotonic_ns();
    const uint64_t deadline = board.deadline_ns.load();
    if (deadline != 0 && now > deadline) {
      board.fail(kExitTimeout, "nothing was finished in the time that --timeout allows",
                 "a larger --timeout, or smaller sizes (-e) or fewer operations (-n)");
    }
    if (!board.failed()) continue;
    if (failed_since == 0) failed_since = now;
    if (now - failed_since < kKillAfterNs) continue;
    for (const Child& child : children) {
      if (child.alive) kill(child.pid, SIGKILL);
    }
  }
  if (leader.joinable()) leader.join();
}

}  // namespace powerccl::bench
