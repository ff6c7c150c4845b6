// SPDX-License-Identifier: Apache-2.0
#include "bench/beside.h"

#include <algorithm>
#include <cmath>

namespace powerccl::bench {
namespace {

constexpr double kTrialS = 0.2;  // a short run first: it tells how much either slows the other
// An event behind every part: so finely is the time told in which both run. Longer parts of short operations, since
// recording an event costs as much as launching one.
constexpr double kPartUs = 4000;
// The computation is enqueued so much ahead, in parts, lest its stream run dry while NCCL's launches wait for room.
constexpr double kAhead = 3;
constexpr double kBegins = 0.1;     // of the time, unmeasured: power and clocks are those of before
constexpr size_t kFirstUnits = 20;  // of the computation alone, which tell how long one takes
constexpr double kMostUnits = 20'000;
constexpr double kLeastUnits = 8;  // beside collectives: fewer tell little of their length

}  // namespace

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
    const Found found = find(enqueued);
    operation_us = board.max(rank_.rank(), found.operation_us);
    unit_us = board.max(rank_.rank(), found.unit_us);
    news.unit_us = board.sum(rank_.rank(), found.unit_us) / rank_.ranks();
    news.iterations = found.operations;
    news.start_ns = enqueued.start_ns + static_cast<uint64_t>(found.from_ms * 1e6);
    news.end_ns = enqueued.start_ns + static_cast<uint64_t>(found.to_ms * 1e6);
    if (emulated_.emulated()) news.emulated_joules = board.sum(rank_.rank(), found.joules);
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

BesideMeasurement::Found BesideMeasurement::find(const Enqueued& enqueued) {
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
  Found found{};
  found.operations = (last_part - first_part) * enqueued.operations_a_part;
  found.operation_us = each_us(part_event(first_part), part_event(last_part), found.operations);
  found.unit_us = each_us(unit_event(first_unit), unit_event(last_unit), last_unit - first_unit);
  found.from_ms = at_ms(part_event(first_part));
  found.to_ms = at_ms(part_event(last_part));
  found.joules = -1;
  if (emulated_.emulated() && found.operations > 0) {
    found.joules =
        emulated_.joules_between(part_event(first_part), part_event(last_part)) / static_cast<double>(found.operations);
  }
  return found;
}

BesideCost beside_cost(const TimeAndPower& operation, double unit_us, const TimeAndPower& alone) {
  const double alone_us = operation.us / unit_us * alone.us;  // the computation done meanwhile, by itself
  BesideCost cost{alone, (unit_us / alone.us - 1) * 100, operation.us - alone_us, std::nullopt};
  if (operation.watts_per_gpu && alone.watts_per_gpu) {
    cost.added_joules = (*operation.watts_per_gpu * operation.us - *alone.watts_per_gpu * alone_us) * 1e-6;
  }
  return cost;
}

}  // namespace powerccl::bench
