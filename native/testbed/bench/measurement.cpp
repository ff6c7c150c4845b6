// SPDX-License-Identifier: Apache-2.0
#include "bench/measurement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "bench/verify.h"

namespace powerccl::bench {
namespace {

constexpr int kStretches = 5;
constexpr size_t kMostTimedEvents = 1000;
constexpr double kTrustedEstimateMs = 2;
constexpr int kAttempts = 3;           // at a loop that is as long as --min-time
constexpr double kEnough = 0.8;        // of it
constexpr double kLeastBesideS = 0.1;  // even without energy: the clock settles in tens of milliseconds
constexpr uint8_t kGarbage = 0xa5;     // what a receive buffer holds before a check

constexpr double kTrialS = 0.2;  // a short run first: it shows how much either slows the other
// An event follows every part, so the time in which both run is known to one part. Parts hold many short operations,
// since recording an event costs as much as launching one.
constexpr double kPartUs = 4000;
// The computation is enqueued so much ahead, in parts, lest its stream run dry while NCCL's launches wait for room.
constexpr double kAhead = 3;
constexpr double kBegins = 0.1;     // of the time, unmeasured: power and clocks are those of before
constexpr size_t kFirstUnits = 20;  // of the computation alone, which tell how long one takes
constexpr double kMostUnits = 20'000;
constexpr double kLeastUnits = 8;  // beside collectives: fewer tell little of their length

// Collectives and computation on one GPU at the same time, in a stream each, and what either takes then.
class BesideMeasurement {
 public:
  BesideMeasurement(Rank& rank, EmulatedTime& emulated, Units& load) : rank_(rank), emulated_(emulated), load_(load) {}

  // The computation alone for about `seconds`: all ranks together.
  LoadNews alone(double seconds);
  // Fills times, energy and the number of operations of `news`. `operation` enqueues one, which takes `operation_us`
  // alone, as a unit of the computation takes `unit_us`.
  void both(double seconds, const std::function<void()>& operation, double operation_us, double unit_us,
            PointNews& news);

 private:
  LoadNews run_alone(size_t units);
  // What was enqueued, and the events behind each part of it.
  struct Enqueued {
    uint64_t operations_a_part;
    size_t parts, units;
    uint64_t start_ns;
  };
  Enqueued enqueue(double seconds, const std::function<void()>& operation, double operation_us, double unit_us);
  // The part of the time in which both ran, on this rank.
  struct Overlap {
    double operation_us, unit_us, from_ms, to_ms;
    double joules;  // of the GPU, an operation; negative: not emulated
    uint64_t operations;
  };
  Overlap find(const Enqueued& enqueued);
  CUevent part_event(size_t index) { return rank_.event(2 * index + 2); }
  CUevent unit_event(size_t index) { return rank_.event(2 * index + 3); }
  double at_ms(CUevent event) const { return rank_.elapsed_ms(rank_.event(0), event); }

  Rank& rank_;
  EmulatedTime& emulated_;
  Units& load_;
};

LoadNews BesideMeasurement::alone(double seconds) {
  run_alone(1);  // cuBLAS loads its kernel with the first product, which takes as long as hundreds of them
  const auto units = static_cast<size_t>(std::clamp(seconds * 1e6 / run_alone(kFirstUnits).unit_us, 1.0, kMostUnits));
  return run_alone(units);
}

LoadNews BesideMeasurement::run_alone(size_t units) {
  Board& board = rank_.board();
  LoadNews news{};
  board.barrier();
  news.start_ns = emulated_.stop();
  rank_.record(rank_.event(0), load_.stream());
  for (size_t i = 0; i < units; ++i) load_.enqueue();
  rank_.record(rank_.event(1), load_.stream());
  emulated_.go();
  rank_.wait(load_.stream());
  news.end_ns = monotonic_ns();
  const auto each = static_cast<double>(units);
  news.unit_us = board.sum(rank_.rank(), at_ms(rank_.event(1)) * 1e3 / each) / rank_.ranks();
  news.emulated_joules = emulated_.emulated()
                             ? board.sum(rank_.rank(), emulated_.joules_between(rank_.event(0), rank_.event(1)) / each)
                             : -1;
  return news;
}

void BesideMeasurement::both(double seconds, const std::function<void()>& operation, double operation_us,
                             double unit_us, PointNews& news) {
  Board& board = rank_.board();
  for (const double wanted_s : {std::min(kTrialS, seconds), seconds}) {
    const Enqueued enqueued = enqueue(wanted_s, operation, operation_us, unit_us);
    const Overlap overlap = find(enqueued);
    operation_us = board.max(rank_.rank(), overlap.operation_us);
    unit_us = board.max(rank_.rank(), overlap.unit_us);
    news.unit_us = board.sum(rank_.rank(), overlap.unit_us) / rank_.ranks();
    news.iterations = overlap.operations;
    news.start_ns = enqueued.start_ns + static_cast<uint64_t>(overlap.from_ms * 1e6);
    news.end_ns = enqueued.start_ns + static_cast<uint64_t>(overlap.to_ms * 1e6);
    if (emulated_.emulated()) news.emulated_joules = board.sum(rank_.rank(), overlap.joules);
  }
  news.time_us = news.device_us = news.low_us = news.high_us = operation_us;
  news.times_us[0] = operation_us;
  news.repeats = 1;
}

BesideMeasurement::Enqueued BesideMeasurement::enqueue(double seconds, const std::function<void()>& operation,
                                                       double operation_us, double unit_us) {
  Enqueued done{};
  done.operations_a_part = static_cast<uint64_t>(std::max(1.0, std::round(kPartUs / operation_us)));
  const double part_us = static_cast<double>(done.operations_a_part) * operation_us;
  const double wanted_us = std::max(seconds * 1e6, kLeastUnits * unit_us);
  done.parts = static_cast<size_t>(std::clamp(std::ceil(wanted_us / part_us), 4.0, 1e5));
  const double all_us = static_cast<double>(done.parts) * part_us;
  const auto most_units = static_cast<size_t>(all_us / unit_us) + 4;
  rank_.event(2 * std::max(done.parts, most_units) + 3);
  rank_.board().barrier();
  done.start_ns = emulated_.stop();
  rank_.record(rank_.event(0), rank_.stream());
  rank_.cuda().check(rank_.cuda().stream_wait_event(load_.stream(), rank_.event(0), 0), "cuStreamWaitEvent");
  for (size_t part = 0; part < done.parts; ++part) {
    const double until_us = std::min(all_us, (static_cast<double>(part) + 1 + kAhead) * part_us);
    while (done.units < most_units && static_cast<double>(done.units) * unit_us < until_us) {
      load_.enqueue();
      rank_.record(unit_event(done.units++), load_.stream());
    }
    for (uint64_t i = 0; i < done.operations_a_part; ++i) operation();
    rank_.record(part_event(part), rank_.stream());
  }
  emulated_.go();
  rank_.wait(rank_.stream());
  rank_.wait(load_.stream());
  return done;
}

BesideMeasurement::Overlap BesideMeasurement::find(const Enqueued& enqueued) {
  const double both_end_ms = std::min(at_ms(part_event(enqueued.parts - 1)), at_ms(unit_event(enqueued.units - 1)));
  const double from_ms = kBegins * both_end_ms;
  // The first and the last event of each kind within that time.
  const auto within = [&](size_t count, auto event) {
    size_t first = 0, last = count - 1;
    while (first + 1 < count && at_ms(event(first)) < from_ms) ++first;
    while (last > first && at_ms(event(last)) > both_end_ms) --last;
    return std::pair(first, last);
  };
  const auto [first_part, last_part] = within(enqueued.parts, [&](size_t i) { return part_event(i); });
  const auto [first_unit, last_unit] = within(enqueued.units, [&](size_t i) { return unit_event(i); });
  const auto each_us = [&](CUevent from, CUevent to, uint64_t count) {
    return count == 0 ? std::nan("") : (at_ms(to) - at_ms(from)) * 1e3 / static_cast<double>(count);
  };
  Overlap overlap{};
  overlap.operations = (last_part - first_part) * enqueued.operations_a_part;
  overlap.operation_us = each_us(part_event(first_part), part_event(last_part), overlap.operations);
  overlap.unit_us = each_us(unit_event(first_unit), unit_event(last_unit), last_unit - first_unit);
  overlap.from_ms = at_ms(part_event(first_part));
  overlap.to_ms = at_ms(part_event(last_part));
  overlap.joules = -1;
  if (emulated_.emulated() && overlap.operations > 0) {
    overlap.joules = emulated_.joules_between(part_event(first_part), part_event(last_part)) /
                     static_cast<double>(overlap.operations);
  }
  return overlap;
}

}  // namespace

Measurement::Measurement(const Options& options, const Point& point, Rank& rank)
    : options_(options),
      rank_(rank),
      board_(rank.board()),
      call_{point.pattern, point.type,  point.op,       point.root,     rank.ranks(),
            rank.rank(),   point.shape, point.in_place, options.grouped},
      buffers_(place(call_, rank.send_buffer(), rank.recv_buffer())),
      emulated_(rank) {}

PointNews Measurement::measure() {
  PointNews news{};
  news.low_us = news.high_us = news.event_us = news.unit_us = -1;
  news.emulated_joules = emulated_.emulated() ? 0 : -1;
  news.wrong = options_.check > 0 ? check() : -1;
  const WithoutData without_data(rank_.cuda());
  many(static_cast<uint64_t>(options_.warmup));
  rank_.wait(rank_.stream());
  news.iterations = static_cast<uint64_t>(options_.iterations);
  // Emulated operations that are made one by one are timed one by one: a longer loop would show nothing more.
  const double min_time_s = options_.blocking && emulated_.emulated() ? 0 : options_.min_time_s;
  if (min_time_s > 0) news.iterations = iterations_for(estimate(), min_time_s, options_.iterations);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    time_loop(news);
    const double here_s =
        emulated_.emulated() ? elapsed_us() * 1e-6 : static_cast<double>(news.end_ns - news.start_ns) * 1e-9;
    const double seconds = board_.max(rank_.rank(), here_s);
    if (seconds >= kEnough * min_time_s) break;
    // The estimate still held what happens only at first (connections, a plugin's start): it is known better now.
    news.iterations = iterations_for(seconds / static_cast<double>(news.iterations), min_time_s, options_.iterations);
  }
  take_times(news);
  repeat(news);
  if (options_.events) news.event_us = board_.max(rank_.rank(), time_single());
  news.valid = board_.max(rank_.rank(), emulated_.kept_up() ? 0 : 1) == 0;
  return news;
}

PointNews Measurement::measure_beside(Units& load, double unit_us) {
  PointNews news{};
  news.event_us = -1;
  news.emulated_joules = -1;
  news.wrong = options_.check > 0 ? check() : -1;
  const WithoutData without_data(rank_.cuda());
  const double operation_us = estimate() * 1e6;
  BesideMeasurement(rank_, emulated_, load)
      .both(std::max(options_.min_time_s, kLeastBesideS), [&] { one(); }, operation_us, unit_us, news);
  news.valid = board_.max(rank_.rank(), emulated_.kept_up() ? 0 : 1) == 0;
  return news;
}

LoadNews Measurement::measure_load(Units& load) {
  return BesideMeasurement(rank_, emulated_, load).alone(std::max(options_.min_time_s, kLeastBesideS));
}

// The greatest times of all ranks, of the loop just made. Emulated GPUs' time is model time, which events tell; the
// host's is how soon this machine carried it out. The same holds of their energy.
void Measurement::take_times(PointNews& news) {
  const auto each = static_cast<double>(news.iterations);
  news.device_us = board_.max(rank_.rank(), elapsed_us() / each);
  news.time_us = emulated_.emulated()
                     ? news.device_us
                     : board_.max(rank_.rank(), static_cast<double>(news.end_ns - news.start_ns) * 1e-3 / each);
  news.times_us[news.repeats++] = news.time_us;
  if (emulated_.emulated()) news.emulated_joules += board_.sum(rank_.rank(), loop_joules() / each);
}

// The loop again, as often as asked for. Times become medians; the stretch from `start_ns` on holds all loops.
void Measurement::repeat(PointNews& news) {
  std::vector<double> device_us{news.device_us};
  PointNews again = news;
  while (again.repeats < options_.repeats) {
    time_loop(again);
    take_times(again);
    device_us.push_back(again.device_us);
    again.low_us = std::min(again.low_us, news.low_us);
    again.high_us = std::max(again.high_us, news.high_us);
    news.low_us = again.low_us;
    news.high_us = again.high_us;
  }
  again.start_ns = news.start_ns;
  news = again;
  news.emulated_joules /= news.repeats;
  news.time_us = median({again.times_us, again.times_us + again.repeats});
  news.device_us = median(device_us);
}

double Measurement::elapsed_us() const {
  if (options_.blocking && emulated_.emulated()) return blocked_us_;
  return rank_.elapsed_ms(rank_.event(0), rank_.event(last_event_)) * 1e3;
}

// Of this rank's GPU, in the loop just made.
double Measurement::loop_joules() {
  return options_.blocking ? blocked_joules_ : emulated_.joules_between(rank_.event(0), rank_.event(last_event_));
}

void Measurement::one() {
  rank_.throw_if_failed();
  enqueue(rank_.nccl(), call_, buffers_, rank_.comm(), rank_.stream());
}

void Measurement::many(uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) one();
}

// Seconds one operation takes, from CUDA events, agreed upon by all ranks.
double Measurement::estimate() {
  int operations = std::clamp(options_.iterations, 1, 5);
  double slowest_ms = 0;
  for (;;) {
    emulated_.stop();
    rank_.record(rank_.event(0), rank_.stream());
    many(static_cast<uint64_t>(operations));
    rank_.record(rank_.event(1), rank_.stream());
    emulated_.go();
    rank_.wait(rank_.stream());
    slowest_ms = board_.max(rank_.rank(), rank_.elapsed_ms(rank_.event(0), rank_.event(1)));
    if (slowest_ms >= kTrustedEstimateMs || operations >= 50) break;
    operations = 50;
  }
  return std::max(slowest_ms * 1e-3 / operations, 1e-7);
}

void Measurement::run_for(double seconds) {
  if (seconds <= 0) return;
  many(iterations_for(estimate(), seconds, 1));
  rank_.wait(rank_.stream());
}

int64_t Measurement::check() {
  const CudaApi& cuda = rank_.cuda();
  const size_t width = info(call_.type).bytes;
  const size_t span = std::max(call_.shape.send_count, call_.shape.recv_count) * width;
  const std::vector<uint8_t> sent = send_data(call_);
  std::vector<uint8_t> received(received_count(call_) * width);
  double wrong = 0;
  for (int i = 0; i < options_.check; ++i) {
    if (span > 0) cuda.check(cuda.memset_d8(rank_.recv_buffer(), kGarbage, span), "cuMemsetD8");
    if (!sent.empty()) cuda.check(cuda.memcpy_to_device(buffers_.send, sent.data(), sent.size()), "cuMemcpyHtoD");
    // Copies go through another stream than the collective, which must not overtake them on any rank.
    rank_.wait(nullptr);
    board_.barrier();
    one();
    rank_.wait(rank_.stream());
    if (!received.empty()) {
      cuda.check(cuda.memcpy_to_host(received.data(), buffers_.recv, received.size()), "cuMemcpyDtoH");
    }
    wrong += static_cast<double>(count_wrong(call_, received));
  }
  return static_cast<int64_t>(board_.sum(rank_.rank(), wrong));
}

void Measurement::time_loop(PointNews& news) {
  if (options_.graph_launches > 0) {
    time_graph(news);
  } else if (options_.blocking) {
    time_blocking(news);
  } else {
    time_queued(news);
  }
}

void Measurement::begin(PointNews& news) {
  board_.barrier();
  news.start_ns = emulated_.stop();
  rank_.record(rank_.event(0), rank_.stream());
}

void Measurement::end(PointNews& news, size_t last) {
  last_event_ = last;
  rank_.record(rank_.event(last), rank_.stream());
  emulated_.go();
  rank_.wait(rank_.stream());
  news.end_ns = monotonic_ns();
}

void Measurement::time_queued(PointNews& news) {
  const auto stretches = std::min<uint64_t>(kStretches, news.iterations);
  std::vector<uint64_t> ends;
  for (uint64_t i = 1; i <= stretches; ++i) ends.push_back(news.iterations * i / stretches);
  for (uint64_t i = 0; i <= stretches; ++i) rank_.event(i);
  begin(news);
  uint64_t done = 0;
  for (uint64_t i = 0; i < stretches; ++i) {
    for (; done < ends[i]; ++done) one();
    if (i + 1 < stretches) rank_.record(rank_.event(i + 1), rank_.stream());
  }
  end(news, stretches);
  news.low_us = std::numeric_limits<double>::max();
  news.high_us = 0;
  for (uint64_t i = 0, first = 0; i < stretches; first = ends[i++]) {
    const double us = rank_.elapsed_ms(rank_.event(i), rank_.event(i + 1)) * 1e3 / static_cast<double>(ends[i] - first);
    news.low_us = std::min(news.low_us, us);
    news.high_us = std::max(news.high_us, us);
  }
}

void Measurement::time_blocking(PointNews& news) {
  rank_.event(1);
  if (emulated_.emulated()) return time_each(news);
  begin(news);
  for (uint64_t i = 0; i < news.iterations; ++i) {
    one();
    rank_.wait(rank_.stream());
    board_.barrier();
  }
  end(news, 1);
}

// Emulated: each operation alone from its launch to its end. What the host takes in between is not the platform's.
void Measurement::time_each(PointNews& news) {
  news.start_ns = monotonic_ns();
  blocked_us_ = blocked_joules_ = 0;
  for (uint64_t i = 0; i < news.iterations; ++i) {
    PointNews alone{};
    begin(alone);
    one();
    end(alone, 1);
    blocked_us_ += rank_.elapsed_ms(rank_.event(0), rank_.event(1)) * 1e3;
    blocked_joules_ += emulated_.joules_between(rank_.event(0), rank_.event(1));
  }
  news.end_ns = monotonic_ns();
}

void Measurement::time_graph(PointNews& news) {
  Graph graph(rank_.cuda(), rank_.stream(), [&] {
    for (int i = 0; i < options_.iterations; ++i) enqueue(rank_.nccl(), call_, buffers_, rank_.comm(), rank_.stream());
  });
  const auto each = static_cast<uint64_t>(options_.iterations);
  const auto launches =
      std::max<uint64_t>(static_cast<uint64_t>(options_.graph_launches), (news.iterations + each - 1) / each);
  news.iterations = launches * each;
  graph.launch(rank_.stream());
  rank_.wait(rank_.stream());
  rank_.event(1);
  begin(news);
  for (uint64_t i = 0; i < launches; ++i) {
    rank_.throw_if_failed();
    graph.launch(rank_.stream());
  }
  end(news, 1);
}

// Median time of a single operation between two events, in microseconds; its own loop, since events take time.
double Measurement::time_single() {
  const size_t operations = std::min<size_t>(static_cast<size_t>(options_.iterations), kMostTimedEvents);
  rank_.event(2 * operations);
  board_.barrier();
  emulated_.stop();
  for (size_t i = 0; i < operations; ++i) {
    rank_.record(rank_.event(2 * i), rank_.stream());
    one();
    rank_.record(rank_.event(2 * i + 1), rank_.stream());
  }
  emulated_.go();
  rank_.wait(rank_.stream());
  std::vector<double> times;
  times.reserve(operations);
  for (size_t i = 0; i < operations; ++i) {
    times.push_back(rank_.elapsed_ms(rank_.event(2 * i), rank_.event(2 * i + 1)) * 1e3);
  }
  return median(times);
}

BesideCost beside_cost(const TimeAndPower& operation, double unit_us, const TimeAndPower& alone) {
  const double alone_us = operation.us / unit_us * alone.us;  // the computation done meanwhile, if it were alone
  BesideCost cost{alone, (unit_us / alone.us - 1) * 100, operation.us - alone_us, std::nullopt};
  if (operation.watts_per_gpu && alone.watts_per_gpu) {
    cost.added_joules = (*operation.watts_per_gpu * operation.us - *alone.watts_per_gpu * alone_us) * 1e-6;
  }
  return cost;
}

void reserve_for(const std::vector<Point>& points, Rank& rank) {
  size_t send_bytes = 0, recv_bytes = 0;
  for (const Point& point : points) {
    const size_t width = info(point.type).bytes;
    // In place, everything is in the receive buffer.
    recv_bytes = std::max(recv_bytes, std::max(point.shape.send_count, point.shape.recv_count) * width);
    send_bytes = std::max(send_bytes, point.shape.send_count * width);
  }
  rank.reserve(send_bytes, recv_bytes);
}

uint64_t iterations_for(double operation_s, double min_time_s, int least) {
  const double wanted = std::ceil(min_time_s / operation_s);
  return static_cast<uint64_t>(
      std::clamp(wanted, static_cast<double>(least), std::max(1e6, static_cast<double>(least))));
}

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace powerccl::bench
