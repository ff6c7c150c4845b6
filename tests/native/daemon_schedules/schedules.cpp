// SPDX-License-Identifier: Apache-2.0
// powerccl-lease-schedules: random schedules against the powerccld binary on emulated GPUs, checked against the
// emulator's own account of the clocks. Each has a seed of its own; --only repeats one (its decisions; the kernel's
// timing is its own).
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "schedule.h"

namespace {

using namespace powerccl::leases;

constexpr char kUsage[] =
    "usage: powerccl-lease-schedules [--schedules N] [--seed S] [--workers W] [--only K] [--stage DIR]\n"
    "  Runs schedules S+0 to S+N-1 (default 200, seed 1) in W processes (default 4), each with an emulated machine of "
    "its\n"
    "  own; --only K runs S+K alone. --stage: a build's stage folder, to try another powerccld. Says `run R violations "
    "V`\n"
    "  last.\n"
    "exit status: 0 nothing violated, 1 something was, 2 wrong usage\n";

constexpr uint64_t kEnough = 100;  // violations: more of them say nothing more

struct Options {
  uint64_t schedules = 200, seed = 1, workers = 4;
  int64_t only = -1;
  std::string stage = POWERCCL_STAGE;
};

// Of all workers, in shared memory.
struct Totals {
  std::atomic<uint64_t> next, run, violations, clients, requests, answers, kills, stops, daemon_kills, daemon_stops,
      grants, missed, failing, slow;
  std::atomic<int64_t> longest_wait_ns;
};

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    char* end = nullptr;
    const uint64_t number = std::strtoull(argv[i + 1], &end, 10);
    if (name == "--stage") {
      options->stage = argv[i + 1];
      continue;
    }
    if (*end != '\0' || end == argv[i + 1]) return false;
    if (name == "--schedules")
      options->schedules = number;
    else if (name == "--seed")
      options->seed = number;
    else if (name == "--workers")
      options->workers = std::clamp<uint64_t>(number, 1, 64);
    else if (name == "--only")
      options->only = static_cast<int64_t>(number);
    else
      return false;
  }
  return argc % 2 == 1;
}

void* share(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("powerccl-lease-schedules");
    std::exit(1);
  }
  return memory;
}

void add(const Counts& counts, Totals* totals) {
  totals->clients += counts.clients;
  totals->requests += counts.requests;
  totals->answers += counts.answers;
  totals->kills += counts.kills;
  totals->stops += counts.stops;
  totals->daemon_kills += counts.daemon_kills;
  totals->daemon_stops += counts.daemon_stops;
  totals->grants += counts.grants;
  totals->missed += counts.missed;
  totals->failing += counts.failing;
  totals->slow += counts.slow;
  int64_t longest = totals->longest_wait_ns.load();
  while (counts.longest_wait_ns > longest &&
         !totals->longest_wait_ns.compare_exchange_weak(longest, counts.longest_wait_ns)) {
  }
}

// One worker: a machine, and one schedule after another. Never returns.
[[noreturn]] void work(const Options& options, uint64_t number, Totals* totals) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // heirs of killed clients come to this process
  std::signal(SIGPIPE, SIG_IGN);
  auto* shared = static_cast<Shared*>(share(sizeof(Shared)));
  int code = 0;
  {
    Machine machine(options.stage,
                    "/dev/shm/powerccl-leases-" + std::to_string(getppid()) + "-" + std::to_string(number));
    if (!machine.up()) {
      std::fprintf(stderr, "powerccl-lease-schedules: no emulated machine from %s\nhint: build powerccl-emulator\n",
                   options.stage.c_str());
      code = 1;
    }
    while (code == 0) {
      const uint64_t k = totals->next++;
      if (k >= options.schedules || totals->violations.load() >= kEnough) break;
      const uint64_t which = options.only >= 0 ? static_cast<uint64_t>(options.only) : k;
      const int64_t begin = now_ns();
      Schedule schedule(&machine, shared, options.seed + which);
      const std::vector<std::string> violations = schedule.run();
      if (std::getenv("POWERCCL_SCHEDULES_TIMES") != nullptr)
        std::fprintf(stderr, "%llu: %lld ms\n", static_cast<unsigned long long>(which),
                     static_cast<long long>((now_ns() - begin) / 1'000'000));
      add(schedule.counts(), totals);
      ++totals->run;
      totals->violations += violations.size();
      for (const std::string& text : violations) {
        const std::string line = "violation in schedule " + std::to_string(which) + " (seed " +
                                 std::to_string(options.seed + which) + "): " + text + "\n";
        if (write(STDOUT_FILENO, line.data(), line.size()) < 0) code = 1;
      }
      // What one schedule left must not be taken for the next one's.
      if (!violations.empty()) unlink(machine.state().c_str());
      if (!machine.all_usual()) code = 3;
    }
  }
  std::_Exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (options.only >= 0) options.schedules = options.workers = 1;
  auto* totals = static_cast<Totals*>(share(sizeof(Totals)));
  reap_one_at_a_time();
  const int64_t begin = now_ns();
  bool broken = false;
  std::vector<pid_t> workers;
  for (uint64_t i = 0; i < options.workers; ++i) {
    const pid_t pid = fork();
    if (pid == 0) work(options, i, totals);
    workers.push_back(pid);
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    int status = 0;
    waitpid(workers[i], &status, 0);
    if (status == 0) continue;
    broken = true;
    // Its machine was left with other clocks: the schedules that are left get a new one.
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) continue;
    const pid_t pid = fork();
    if (pid == 0) work(options, workers.size(), totals);
    workers.push_back(pid);
  }
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  const auto of = [](const auto& number) { return static_cast<unsigned long long>(number.load()); };
  std::printf("%.1f s, %.1f schedules a second; %llu clients, %llu requests, %llu answers, %llu leases\n", seconds,
              static_cast<double>(totals->run.load()) / seconds, of(totals->clients), of(totals->requests),
              of(totals->answers), of(totals->grants));
  std::printf(
      "clients killed %llu, stopped %llu, silent too long %llu; daemon killed %llu, told to stop %llu; driver "
      "failing %llu, slow %llu; longest wait for an answer %.0f ms\n",
      of(totals->kills), of(totals->stops), of(totals->missed), of(totals->daemon_kills), of(totals->daemon_stops),
      of(totals->failing), of(totals->slow), static_cast<double>(totals->longest_wait_ns.load()) / 1e6);
  std::printf("run %llu violations %llu\n", of(totals->run), of(totals->violations));
  return totals->violations.load() != 0 || broken || totals->run.load() < options.schedules ? 1 : 0;
}
