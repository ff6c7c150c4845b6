// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth between two ranks, as OSU's micro-benchmarks measure them. Latency is half of a ping-pong's
// round trip; bandwidth is that of windows of messages in flight, which one short message acknowledges.
#include <algorithm>
#include <vector>

#include "bench/mpi/report.h"
#include "bench/values.h"

namespace powerccl::bench::mpi {
namespace {

constexpr int kTag = 1;
constexpr int kAcknowledgeTag = 2;

class Pair {
 public:
  Pair(const Options& options, const Mpi& mpi, size_t bytes)
      : options_(options),
        mpi_(mpi),
        bytes_(static_cast<int>(bytes)),
        peer_(1 - mpi.rank()),
        compute_us_(options.compute_of_us(mpi.rank(), mpi.size())),
        send_(bytes, static_cast<char>('a' + mpi.rank())),
        receive_(bytes),
        sending_(mpi.abi(), options.window),
        receiving_(mpi.abi(), options.window) {}

  // Time of the calls of one step, in us, on rank 0: half a round trip, or a window.
  double step() { return options_.test == Test::kLatency ? ping_pong() / 2 : window(); }
  double wrong() const {
    const char expected = static_cast<char>('a' + peer_);
    const bool receives = options_.test != Test::kBandwidth || mpi_.rank() == 1;
    return receives ? static_cast<double>(bytes_ - std::ranges::count(receive_, expected)) : 0;
  }

 private:
  void send() { mpi_.call().send(send_.data(), bytes_, mpi_.handle().byte, peer_, kTag, mpi_.handle().world); }
  void receive() {
    mpi_.call().recv(receive_.data(), bytes_, mpi_.handle().byte, peer_, kTag, mpi_.handle().world,
                     mpi_.abi().ignore_status);
  }
  void acknowledge(bool says) {
    char byte = 0;
    if (says) {
      mpi_.call().send(&byte, 1, mpi_.handle().byte, peer_, kAcknowledgeTag, mpi_.handle().world);
    } else {
      mpi_.call().recv(&byte, 1, mpi_.handle().byte, peer_, kAcknowledgeTag, mpi_.handle().world,
                       mpi_.abi().ignore_status);
    }
  }
  double ping_pong() {
    compute_us(compute_us_);
    const int64_t begin_ns = host_now_ns();
    if (mpi_.leads()) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    return us_since(begin_ns);
  }
  double window() {
    const bool both = options_.test == Test::kBothWays;
    const bool receives = both || mpi_.rank() == 1;
    const bool sends = both || mpi_.rank() == 0;
    const Functions& call = mpi_.call();
    const Handles& handle = mpi_.handle();
    compute_us(compute_us_);
    const int64_t begin_ns = host_now_ns();
    for (int i = 0; receives && i < options_.window; ++i) {
      call.irecv(receive_.data(), bytes_, handle.byte, peer_, kTag, handle.world, receiving_.at(i));
    }
    for (int i = 0; sends && i < options_.window; ++i) {
      call.isend(send_.data(), bytes_, handle.byte, peer_, kTag, handle.world, sending_.at(i));
    }
    if (sends) call.waitall(options_.window, sending_.data(), mpi_.abi().ignore_status);
    if (receives) call.waitall(options_.window, receiving_.data(), mpi_.abi().ignore_status);
    acknowledge(mpi_.rank() == 1);
    return us_since(begin_ns);
  }

  const Options& options_;
  const Mpi& mpi_;
  int bytes_, peer_;
  double compute_us_;
  std::vector<char> send_, receive_;
  Requests sending_, receiving_;
};

}  // namespace

void run_point_to_point(const Options& options, const Mpi& mpi, Report& report) {
  if (mpi.size() != 2) {
    throw Failure(
        kExitUsage,
        std::string(info_of(options.test).name) + " is a test of two ranks, not of " + std::to_string(mpi.size()),
        "mpiexec -n 2");
  }
  const bool latency = options.test == Test::kLatency;
  for (const size_t bytes : sizes_of(options, 1)) {
    const Iterations iterations = iterations_of(options, bytes);
    Pair pair(options, mpi, bytes);
    for (int i = 0; i < iterations.warmup; ++i) pair.step();
    std::vector<double> steps_us;
    steps_us.reserve(iterations.measured);
    mpi.barrier();
    const double cpu_begin_s = process_cpu_s();
    const int64_t begin_ns = host_now_ns();
    for (int i = 0; i < iterations.measured; ++i) steps_us.push_back(pair.step());
    const double loop_s = 1e-6 * us_since(begin_ns);
    const std::vector<double> cpu_s = mpi.gather(process_cpu_s() - cpu_begin_s);
    const double wrong = mpi.sum(options.check ? pair.wrong() : 0);
    report.count_wrong(wrong);
    if (!mpi.leads()) continue;
    const Spread spread = Spread::of(steps_us);
    json::Object result;
    result.add("test", info_of(options.test).name).add("size_bytes", bytes).add("iterations", iterations.measured);
    result.add("warmup", iterations.warmup);
    if (latency) {
      result.add("avg_us", spread.mean).add("min_us", spread.min).add("max_us", spread.max);
      result.add("median_us", spread.median).add("low_us", spread.low).add("high_us", spread.high);
    } else {
      const double messages = options.window * (options.test == Test::kBothWays ? 2.0 : 1.0);
      // A byte a microsecond is a megabyte (1e6, as OSU counts) a second.
      const double mb = messages * static_cast<double>(bytes);
      result.add("window", options.window).add("mb_per_s", mb / spread.mean).add("median_mb_per_s", mb / spread.median);
      result.add("low_mb_per_s", mb / spread.high).add("high_mb_per_s", mb / spread.low);
      result.add("messages_per_s", 1e6 * messages / spread.mean);
    }
    result.add("loop_s", loop_s).add("cpu_s", cpu_s);
    result.add("wrong", json::when(options.check, static_cast<int64_t>(wrong)));
    report.add(result);
  }
}

// What a wait costs: CPU time of the waiting rank, and how late it goes on. Both ranks are on one host, so the sender's
// stamp and the receiver's are of the same clock.
namespace {

constexpr int kStampTag = 7;
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
      call.send(&stamp_ns, sizeof stamp_ns, mpi.handle().byte, 0, kStampTag, world);
      return {};
    }
  }
  const int64_t process_cpu_begin_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  const int64_t cpu_begin_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const int64_t begin_ns = host_now_ns();
  if (collective) {
    call.barrier(world);
  } else {
    call.recv(&stamp_ns, sizeof stamp_ns, mpi.handle().byte, last, kStampTag, world, mpi.abi().ignore_status);
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
