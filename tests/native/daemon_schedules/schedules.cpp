// SPDX-License-Identifier: Apache-2.0
// powerccl-lease-schedules: random schedules against the powerccld binary on emulated GPUs, checked against the
// emulator's own account of the clocks. Each has a seed of its own; --only repeats one (its decisions; the kernel's
// timing is its own).
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

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
  std::string stage = POWERCCL_STAGE;
};

// Of all workers, in shared memory.
struct Totals {
  std::atomic<uint64_t> next, run, violations;
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
      options->seed += number, options->schedules = options->workers = 1;
    else
      return false;
  }
  return argc % 2 == 1;
}

// One worker: a machine, and one schedule after another.
int work(const Options& options, uint64_t number, Totals* totals) {
  const std::string folder = "/dev/shm/powerccl-leases-" + std::to_string(getppid()) + "-" + std::to_string(number);
  std::unique_ptr<Machine> machine;
  for (uint64_t k = totals->next++; k < options.schedules && totals->violations < kEnough; k = totals->next++) {
    if (machine == nullptr) machine = std::make_unique<Machine>(options.stage, folder);
    if (!machine->up()) {
      std::fprintf(stderr, "powerccl-lease-schedules: no emulated machine from %s\nhint: build powerccl-emulator\n",
                   options.stage.c_str());
      return 1;
    }
    const std::vector<std::string> violations = Schedule(machine.get(), options.seed + k).run();
    ++totals->run;
    totals->violations += violations.size();
    for (const std::string& text : violations)
      std::printf("violation in schedule %llu: %s\n", static_cast<unsigned long long>(options.seed + k), text.c_str());
    std::fflush(stdout);
    if (!violations.empty()) machine.reset();  // what one schedule left must not be taken for the next one's
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  void* memory = mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* totals = static_cast<Totals*>(memory);
  std::signal(SIGPIPE, SIG_IGN);
  for (uint64_t i = 0; i < options.workers; ++i) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::_Exit(work(options, i, totals));
  }
  bool broken = false;
  for (int status = 0; wait(&status) > 0;) broken = broken || status != 0;
  const uint64_t run = totals->run, violations = totals->violations;
  std::printf("run %llu violations %llu\n", static_cast<unsigned long long>(run),
              static_cast<unsigned long long>(violations));
  return violations != 0 || broken || run < options.schedules ? 1 : 0;
}
