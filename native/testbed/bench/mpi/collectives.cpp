// SPDX-License-Identifier: Apache-2.0
// Collectives as OSU's micro-benchmarks time them: each call on each rank, and a barrier after it that is not timed.
// The result is the average over ranks of their mean times.
#include <algorithm>
#include <functional>
#include <vector>

#include "bench/mpi/report.h"
#include "bench/verify.h"

namespace powerccl::bench::mpi {
namespace {

constexpr int kRoot = 0;

// Send and receive buffers of one size, the call on them, and whether it did what it should.
class Operation {
 public:
  Operation(Test test, const Mpi& mpi, size_t bytes);
  void run() const { run_(); }
  // Runs once on buffers filled for it; how many bytes or floats are wrong on this rank.
  double check();

 private:
  void make_call(size_t bytes);

  Test test_;
  const Mpi& mpi_;
  Call call_{};
  size_t first_ =
      0;  // of this rank's elements of a scattered sum, whose parts differ by one where ranks do not divide it
  std::vector<uint8_t> send_, receive_;
  std::vector<int> counts_;
  std::function<void()> run_;
};

Operation::Operation(Test test, const Mpi& mpi, size_t bytes) : test_(test), mpi_(mpi) {
  const auto pattern = info_of(test).pattern;
  if (pattern) {
    const PatternInfo& about = info(*pattern);
    const Type type = about.reduces ? Type::kFloat32 : Type::kByte;
    const auto ranks = static_cast<size_t>(mpi.size()), rank = static_cast<size_t>(mpi.rank());
    const size_t count = bytes / info(type).bytes;
    Shape shape{count, bytes, count, count};
    if (test == Test::kReduceScatter) {
      for (size_t r = 0; r < ranks; ++r) counts_.push_back(static_cast<int>(count / ranks + (r < count % ranks)));
      for (size_t r = 0; r < rank; ++r) first_ += static_cast<size_t>(counts_[r]);
      shape.count = shape.recv_count = static_cast<size_t>(counts_[rank]);
    } else {
      first_ = about.sends_all ? rank * count : 0;
      if (about.sends_all) shape.send_count *= ranks;
      if (about.recv_all) shape.recv_count *= ranks;
    }
    call_ = {*pattern, type, Op::kSum, kRoot, mpi.size(), mpi.rank(), shape, false, false};
    send_.resize(std::max(shape.send_count, shape.recv_count) * info(type).bytes);
    receive_.resize(send_.size());
  }
  make_call(bytes);
}

void Operation::make_call(size_t size) {
  const Functions& f = mpi_.call();
  const Handles h = mpi_.handle();
  uint8_t* send = send_.data();
  uint8_t* receive = receive_.data();
  const int bytes = static_cast<int>(size), floats = static_cast<int>(size / sizeof(float));
  switch (test_) {
    case Test::kBroadcast:
      run_ = [=] { f.bcast(send, bytes, h.byte, kRoot, h.world); };
      break;
    case Test::kReduce:
      run_ = [=] { f.reduce(send, receive, floats, h.float32, h.sum, kRoot, h.world); };
      break;
    case Test::kAllReduce:
      run_ = [=] { f.allreduce(send, receive, floats, h.float32, h.sum, h.world); };
      break;
    case Test::kAllGather:
      run_ = [=] { f.allgather(send, bytes, h.byte, receive, bytes, h.byte, h.world); };
      break;
    case Test::kReduceScatter:
      run_ = [=, counts = counts_.data()] { f.reduce_scatter(send, receive, counts, h.float32, h.sum, h.world); };
      break;
    case Test::kAllToAll:
      run_ = [=] { f.alltoall(send, bytes, h.byte, receive, bytes, h.byte, h.world); };
      break;
    case Test::kGather:
      run_ = [=] { f.gather(send, bytes, h.byte, receive, bytes, h.byte, kRoot, h.world); };
      break;
    case Test::kScatter:
      run_ = [=] { f.scatter(send, bytes, h.byte, receive, bytes, h.byte, kRoot, h.world); };
      break;
    default:
      run_ = [=] { f.barrier(h.world); };
  }
}

double Operation::check() {
  if (!info_of(test_).pattern) return 0;
  std::ranges::copy(send_data(call_), send_.begin());
  run();
  std::vector<uint8_t>& received = test_ == Test::kBroadcast ? send_ : receive_;
  return static_cast<double>(count_wrong(call_, received, first_));
}

struct Times {
  std::vector<double> calls_us;
  double loop_s, cpu_s;
};

Times time_calls(const Options& options, const Mpi& mpi, const Operation& operation, Iterations iterations) {
  const double compute = options.compute_of_us(mpi.rank(), mpi.size());
  const int together = options.back_to_back;
  const bool separate = together == 1 && options.test != Test::kBarrier;
  for (int i = 0; i < iterations.warmup; ++i) {
    compute_us(compute);
    operation.run();
    if (separate) mpi.barrier();
  }
  const int groups = std::max(1, iterations.measured / together);
  Times times{};
  times.calls_us.reserve(groups);
  mpi.barrier();
  const double cpu_begin_s = process_cpu_s();
  const int64_t loop_begin_ns = host_now_ns();
  for (int i = 0; i < groups; ++i) {
    compute_us(compute);
    const int64_t begin_ns = host_now_ns();
    for (int k = 0; k < together; ++k) operation.run();
    times.calls_us.push_back(us_since(begin_ns) / together);
    if (separate) mpi.barrier();
  }
  times.loop_s = 1e-6 * us_since(loop_begin_ns);
  times.cpu_s = process_cpu_s() - cpu_begin_s;
  return times;
}

void report_size(const Options& options, const Mpi& mpi, Report& report, size_t bytes, Iterations iterations,
                 const Times& times, double wrong) {
  const Spread calls = Spread::of(times.calls_us);
  const Spread means = Spread::of(mpi.gather(calls.mean));
  const Spread medians = Spread::of(mpi.gather(calls.median));
  const Spread lows = Spread::of(mpi.gather(calls.low));
  const Spread highs = Spread::of(mpi.gather(calls.high));
  const Spread loops = Spread::of(mpi.gather(times.loop_s));
  const std::vector<double> cpus = mpi.gather(times.cpu_s);
  const double all_wrong = mpi.sum(wrong);
  report.count_wrong(all_wrong);
  if (!mpi.leads()) return;
  json::Object result;
  result.add("test", info_of(options.test).name).add("size_bytes", bytes).add("iterations", iterations.measured);
  result.add("warmup", iterations.warmup).add("back_to_back", options.back_to_back);
  result.add("avg_us", means.mean).add("min_us", means.min).add("max_us", means.max);
  result.add("median_us", medians.mean).add("low_us", lows.mean).add("high_us", highs.mean);
  result.add("loop_s", loops.max).add("cpu_s", cpus);
  result.add("wrong", json::when(options.check && options.test != Test::kBarrier, static_cast<int64_t>(all_wrong)));
  report.add(result);
}

}  // namespace

void run_collective(const Options& options, const Mpi& mpi, Report& report) {
  std::vector<size_t> sizes{0};
  if (options.test != Test::kBarrier) sizes = sizes_of(options, info_of(options.test).reduces() ? sizeof(float) : 1);
  for (const size_t bytes : sizes) {
    const Iterations iterations = iterations_of(options, bytes);
    Operation operation(options.test, mpi, bytes);
    const double wrong = options.check ? operation.check() : 0;
    const Times times = time_calls(options, mpi, operation, iterations);
    report_size(options, mpi, report, bytes, iterations, times, wrong);
  }
}

}  // namespace powerccl::bench::mpi
