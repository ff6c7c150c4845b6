// SPDX-License-Identifier: Apache-2.0
// Collectives as OSU's micro-benchmarks time them: each call on each rank, a barrier after it that is not timed, the
// average over ranks of their mean times.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "bench/failure.h"
#include "bench/mpi/clock.h"
#include "bench/mpi/statistics.h"
#include "bench/mpi/tests.h"

namespace powerccl::bench::mpi {
namespace {

constexpr int kRoot = 0;

// Send and receive buffers of one size, the call on them, and whether it did what it should.
class Operation {
 public:
  Operation(Test test, const Mpi& mpi, size_t bytes);
  void run() const { call_(); }
  // Runs once on buffers filled for it; how many bytes or floats are wrong on this rank.
  double check();

 private:
  void make_call();
  size_t count_of(int rank) const { return elements_ / ranks_ + (static_cast<size_t>(rank) < elements_ % ranks_); }
  // Byte `index` of what `from` has for `to`.
  static char byte_of(size_t index, size_t from, size_t to) {
    return static_cast<char>((index * 7) + (from * 13) + (to * 31));
  }
  static float float_of(size_t index, int from) { return static_cast<float>(index % 64) + static_cast<float>(from); }
  float sum_of(size_t index) const {
    const auto ranks = static_cast<float>(ranks_);
    return (ranks * static_cast<float>(index % 64)) + (ranks * (ranks - 1) / 2);
  }
  double wrong_sums(size_t first, size_t count) const;
  double wrong_blocks(size_t blocks, bool from_root, bool for_all) const;

  Test test_;
  const Mpi& mpi_;
  size_t bytes_, elements_, ranks_;
  std::vector<char> send_, receive_;
  std::vector<int> counts_;
  std::function<void()> call_;
};

Operation::Operation(Test test, const Mpi& mpi, size_t bytes)
    : test_(test), mpi_(mpi), bytes_(bytes), elements_(bytes / sizeof(float)), ranks_(mpi.size()) {
  const size_t all = info_of(test).per_rank_pair ? bytes * ranks_ : bytes;
  send_.resize(all);
  receive_.resize(all);
  for (size_t r = 0; r < ranks_; ++r) counts_.push_back(static_cast<int>(count_of(static_cast<int>(r))));
  make_call();
}

void Operation::make_call() {
  const Functions& f = mpi_.call();
  const Handles h = mpi_.handle();
  char* send = send_.data();
  char* receive = receive_.data();
  const int bytes = static_cast<int>(bytes_);
  const int floats = static_cast<int>(elements_);
  switch (test_) {
    case Test::kBroadcast:
      call_ = [=] { f.bcast(send, bytes, h.byte, kRoot, h.world); };
      break;
    case Test::kReduce:
      call_ = [=] { f.reduce(send, receive, floats, h.float32, h.sum, kRoot, h.world); };
      break;
    case Test::kAllReduce:
      call_ = [=] { f.allreduce(send, receive, floats, h.float32, h.sum, h.world); };
      break;
    case Test::kAllGather:
      call_ = [=] { f.allgather(send, bytes, h.byte, receive, bytes, h.byte, h.world); };
      break;
    case Test::kReduceScatter:
      call_ = [=, counts = counts_.data()] { f.reduce_scatter(send, receive, counts, h.float32, h.sum, h.world); };
      break;
    case Test::kAllToAll:
      call_ = [=] { f.alltoall(send, bytes, h.byte, receive, bytes, h.byte, h.world); };
      break;
    case Test::kGather:
      call_ = [=] { f.gather(send, bytes, h.byte, receive, bytes, h.byte, kRoot, h.world); };
      break;
    case Test::kScatter:
      call_ = [=] { f.scatter(send, bytes, h.byte, receive, bytes, h.byte, kRoot, h.world); };
      break;
    default:
      call_ = [=] { f.barrier(h.world); };
  }
}

double Operation::wrong_sums(size_t first, size_t count) const {
  double wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, receive_.data() + i * sizeof value, sizeof value);
    wrong += value != sum_of(first + i);
  }
  return wrong;
}

double Operation::wrong_blocks(size_t blocks, bool from_root, bool for_all) const {
  const std::vector<char>& buffer = test_ == Test::kBroadcast ? send_ : receive_;
  double wrong = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const size_t from = from_root ? kRoot : block;
    const size_t to = for_all ? 0 : static_cast<size_t>(mpi_.rank());
    for (size_t i = 0; i < bytes_; ++i) wrong += buffer[block * bytes_ + i] != byte_of(i, from, to);
  }
  return wrong;
}

double Operation::check() {
  const auto me = static_cast<size_t>(mpi_.rank());
  if (info_of(test_).reduces) {
    for (size_t i = 0; i < elements_; ++i) {
      const float value = float_of(i, mpi_.rank());
      std::memcpy(send_.data() + i * sizeof value, &value, sizeof value);
    }
  } else {
    const size_t blocks = bytes_ == 0 ? 0 : send_.size() / bytes_;
    for (size_t block = 0; block < blocks; ++block) {
      for (size_t i = 0; i < bytes_; ++i) send_[block * bytes_ + i] = byte_of(i, me, block);
    }
  }
  run();
  const bool root = mpi_.rank() == kRoot;
  switch (test_) {
    case Test::kReduce:
      return root ? wrong_sums(0, elements_) : 0;
    case Test::kAllReduce:
      return wrong_sums(0, elements_);
    case Test::kReduceScatter: {
      size_t first = 0;
      for (size_t r = 0; r < me; ++r) first += count_of(static_cast<int>(r));
      return wrong_sums(first, count_of(mpi_.rank()));
    }
    case Test::kBroadcast:
      return wrong_blocks(1, true, true);
    case Test::kAllGather:
      return wrong_blocks(ranks_, false, true);
    case Test::kAllToAll:
      return wrong_blocks(ranks_, false, false);
    case Test::kGather:
      return root ? wrong_blocks(ranks_, false, true) : 0;
    case Test::kScatter:
      return wrong_blocks(1, true, false);
    default:
      return 0;
  }
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
  const int64_t loop_begin_ns = now_ns();
  for (int i = 0; i < groups; ++i) {
    compute_us(compute);
    const int64_t begin_ns = now_ns();
    for (int k = 0; k < together; ++k) operation.run();
    times.calls_us.push_back(to_us(now_ns() - begin_ns) / together);
    if (separate) mpi.barrier();
  }
  times.loop_s = 1e-6 * to_us(now_ns() - loop_begin_ns);
  times.cpu_s = process_cpu_s() - cpu_begin_s;
  return times;
}

void report_size(const Options& options, const Mpi& mpi, Report& report, size_t bytes, Iterations iterations,
                 const Times& times, double wrong) {
  const Spread mine = Spread::of(times.calls_us);
  const Spread means = Spread::of(mpi.gather(mine.mean));
  const Spread medians = Spread::of(mpi.gather(mine.median));
  const Spread lows = Spread::of(mpi.gather(mine.low));
  const Spread highs = Spread::of(mpi.gather(mine.high));
  const Spread loops = Spread::of(mpi.gather(times.loop_s));
  const std::vector<double> cpus = mpi.gather(times.cpu_s);
  const double all_wrong = mpi.sum(wrong);
  report.count_wrong(all_wrong);
  if (!mpi.leads()) return;
  double cpu_s = 0;
  for (const double each : cpus) cpu_s += each;
  const double cpu_pct = 100 * cpu_s / (loops.max * mpi.size());
  report.say("%12zu %12.3f %12.3f %12.3f %12.3f %12.1f %8.0f\n", bytes, means.mean, means.min, means.max, medians.mean,
             cpu_pct, all_wrong);
  json::Object result;
  result.add("test", info_of(options.test).name).add("size_bytes", bytes).add("iterations", iterations.measured);
  result.add("warmup", iterations.warmup).add("back_to_back", options.back_to_back);
  result.add("avg_us", means.mean).add("min_us", means.min).add("max_us", means.max);
  result.add("median_us", medians.mean).add("low_us", lows.mean).add("high_us", highs.mean);
  result.add("loop_s", loops.max).add("cpu_s", cpus);
  if (options.check && options.test != Test::kBarrier) {
    result.add("wrong", static_cast<int64_t>(all_wrong));
  } else {
    result.add("wrong", std::nullopt);
  }
  report.add(result);
}

}  // namespace

void run_collective(const Options& options, const Mpi& mpi, Report& report) {
  report.say("%12s %12s %12s %12s %12s %12s %8s\n", "size_bytes", "avg_us", "min_us", "max_us", "median_us", "cpu_pct",
             "wrong");
  std::vector<size_t> sizes{0};
  if (options.test != Test::kBarrier) sizes = sizes_of(options, info_of(options.test).reduces ? sizeof(float) : 1);
  for (const size_t bytes : sizes) {
    const Iterations iterations = iterations_of(options, bytes);
    Operation operation(options.test, mpi, bytes);
    const double wrong = options.check ? operation.check() : 0;
    const Times times = time_calls(options, mpi, operation, iterations);
    report_size(options, mpi, report, bytes, iterations, times, wrong);
  }
}

}  // namespace powerccl::bench::mpi
