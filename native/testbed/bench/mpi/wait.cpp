// SPDX-License-Identifier: Apache-2.0
// What a wait costs: CPU time of the waiting rank, and how late it goes on. Both ranks are on one host, so the sender's
// stamp and the receiver's are of the same clock.
#include <vector>

#include "bench/failure.h"
#include "bench/mpi/report.h"

namespace powerccl::bench::mpi {
namespace {

constexpr int kTag = 7;
constexpr int kWarmup = 3;
constexpr double kWarmupUs = 200;

struct Waited {
  double waited_us = 0, cpu_us = 0, process_cpu_us = 0, late_us = 0;
};

// On rank 0, one wait; the last rank makes it so long.
Waited one_wait(const Mpi& mpi, double wait_us, bool collective) {
  const Functions& call = mpi.call();
  const Handle world = mpi.handle().world;
  const int last = mpi.size() - 1;
  int64_t stamp_ns = 0;
  mpi.barrier();
  if (mpi.rank() == last) {
    compute_us(wait_us);
    stamp_ns = host_now_ns();
    if (!collective) {
      call.send(&stamp_ns, sizeof stamp_ns, mpi.handle().byte, 0, kTag, world);
      return {};
    }
  }
  const int64_t process_cpu_begin_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  const int64_t cpu_begin_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const int64_t begin_ns = host_now_ns();
  if (collective) {
    call.barrier(world);
  } else {
    call.recv(&stamp_ns, sizeof stamp_ns, mpi.handle().byte, last, kTag, world, mpi.abi().ignore_status);
  }
  const int64_t end_ns = host_now_ns();
  const int64_t cpu_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_begin_ns;
  const int64_t process_cpu_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - process_cpu_begin_ns;
  if (collective) call.bcast(&stamp_ns, sizeof stamp_ns, mpi.handle().byte, last, world);
  const auto to_us = [](int64_t ns) { return 1e-3 * static_cast<double>(ns); };
  return {to_us(end_ns - begin_ns), to_us(cpu_ns), to_us(process_cpu_ns), to_us(end_ns - stamp_ns)};
}

}  // namespace

void run_wait(const Options& options, const Mpi& mpi, Report& report) {
  const WaitOptions& wait = options.wait;
  if (mpi.size() < 2 || (mpi.size() > 2 && !wait.collective)) {
    throw Failure(kExitUsage, "wait is a test of two ranks, not of " + std::to_string(mpi.size()),
                  "mpiexec -n 2; with --collective there may be more");
  }
  for (int i = 0; i < kWarmup; ++i) one_wait(mpi, kWarmupUs, wait.collective);
  std::vector<double> waited_us;
  std::vector<double> cpu_us;
  std::vector<double> process_cpu_us;
  std::vector<double> late_us;
  for (int i = 0; i < wait.repeat; ++i) {
    const Waited one = one_wait(mpi, wait.wait_us, wait.collective);
    if (!mpi.leads()) continue;
    waited_us.push_back(one.waited_us);
    cpu_us.push_back(one.cpu_us);
    process_cpu_us.push_back(one.process_cpu_us);
    late_us.push_back(one.late_us);
    json::Object result;
    result.add("repeat", i).add("waited_us", one.waited_us).add("cpu_us", one.cpu_us);
    result.add("process_cpu_us", one.process_cpu_us).add("late_us", one.late_us);
    report.add(result);
  }
  if (!mpi.leads()) return;
  const Spread waited = Spread::of(waited_us);
  const Spread cpu = Spread::of(cpu_us);
  const Spread late = Spread::of(late_us);
  json::Object summary;
  summary.add("wait_us", wait.wait_us).add("repeat", wait.repeat).add("collective", wait.collective);
  summary.add("waited_us", waited.json()).add("cpu_us", cpu.json());
  summary.add("process_cpu_us", Spread::of(process_cpu_us).json()).add("late_us", late.json());
  report.summarise(summary);
}

}  // namespace powerccl::bench::mpi
