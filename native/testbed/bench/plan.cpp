// SPDX-License-Identifier: Apache-2.0
#include "bench/plan.h"

#include <cstdio>
#include <fstream>
#include <memory>

#include "bench/json.h"
#include "bench/measurement.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

using json::field;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + "|";
  return text;
}

}  // namespace

std::string key_of(const Point& point, int ranks) {
  const PatternInfo& pattern = info(point.pattern);
  return join({pattern.name, std::to_string(point.shape.size_bytes), info(point.type).name,
               pattern.reduces ? info(point.op).name : "null", pattern.has_root() ? std::to_string(point.root) : "null",
               point.in_place ? "true" : "false", std::to_string(ranks),
               point.clock_mhz == kClockAsFound ? "null" : std::to_string(point.clock_mhz),
               point.way == Way::kAsGiven ? "null" : info(point.way).name,
               point.beside == Beside::kNothing ? "null" : info(point.beside).name});
}

std::set<std::string> done_points(const std::string& path, uint64_t* whole_bytes) {
  std::set<std::string> done;
  std::ifstream file(path);
  std::string line;
  uint64_t whole = 0;
  while (std::getline(file, line)) {
    if (file.eof() || !line.ends_with('}')) break;
    whole += line.size() + 1;
    if (field(line, "type") != "point" || field(line, "valid") == "false") continue;
    done.insert(join({field(line, "pattern"), field(line, "size_bytes"), field(line, "dtype"), field(line, "op"),
                      field(line, "root"), field(line, "in_place"), field(line, "ranks"),
                      field(line, "clock_requested_mhz"), field(line, "way").empty() ? "null" : field(line, "way"),
                      field(line, "beside").empty() ? "null" : field(line, "beside")}));
  }
  if (whole_bytes != nullptr) *whole_bytes = whole;
  return done;
}

std::vector<size_t> sizes_of(const Options& options) {
  return sizes_between(options.min_bytes, options.max_bytes, options.step_bytes, options.factor);
}

namespace {

std::vector<std::pair<Way, Beside>> ways_beside(const Options& options) {
  std::vector<std::pair<Way, Beside>> all;
  for (const Way way : options.ways) {
    for (const Beside beside : options.besides) all.emplace_back(way, beside);
  }
  return all;
}

}  // namespace

std::vector<Point> make_plan(const Options& options, int ranks, const std::set<std::string>& done) {
  std::vector<Point> plan;
  const auto add = [&](Point point) {
    if (!done.contains(key_of(point, ranks))) plan.push_back(point);
  };
  for (const auto& [way, beside] : ways_beside(options)) {
    for (const int clock : options.clocks_mhz) {
      for (const Pattern pattern : options.patterns) {
        if (!carries_out(way, pattern)) continue;
        const PatternInfo& about = info(pattern);
        const std::vector<Op> ops = about.reduces ? options.ops : std::vector<Op>{Op::kSum};
        const int first_root = about.has_root() && options.root >= 0 ? options.root : 0;
        const int last_root = about.has_root() && options.root < 0 ? ranks - 1 : first_root;
        for (const Type type : options.types) {
          for (const Op op : ops) {
            for (int root = first_root; root <= last_root; ++root) {
              for (const size_t size : sizes_of(options)) {
                const Shape shape = shape_of(pattern, size, type, ranks);
                add({pattern, type, op, root, clock, false, shape, way, beside});
                if (options.in_place && about.in_place) add({pattern, type, op, root, clock, true, shape, way, beside});
              }
            }
          }
        }
      }
    }
  }
  return plan;
}

namespace {

class Sweep {
 public:
  Sweep(const Options& options, const std::vector<Point>& plan, Rank& rank)
      : options_(options), plan_(plan), rank_(rank), board_(rank.board()) {}

  void run() {
    rank_.set_deadline();
    reserve_for(plan_, rank_);
    int clock = kClockAsFound;
    bool refused = false;
    Way way = plan_.empty() ? Way::kAsGiven : plan_.front().way;
    for (size_t i = 0; i < plan_.size(); ++i) {
      const Point& point = plan_[i];
      // Once the driver has refused, all clocks are the clock as found: measuring the first one's points is enough.
      if (refused && point.clock_mhz != plan_.front().clock_mhz) continue;
      rank_.set_deadline();
      if (point.way != way && !offers(point.way)) continue;
      if (point.way != way) {
        rank_.change_way(point.way);
        reserve_for(plan_, rank_);
        way = point.way;
      }
      Measurement measurement(options_, point, rank_);
      if (point.clock_mhz != clock && !refused) {
        refused = !set_clock(point.clock_mhz);
        clock = point.clock_mhz;
        if (!refused) measurement.run_for(options_.settle_s);
      }
      const bool alone = point.beside == Beside::kNothing;
      if (!alone) compute_beside(point, measurement);
      PointNews news = alone ? measurement.measure() : measurement.measure_beside(*load_, unit_us_);
      news.index = i;
      if (rank_.rank() != 0) continue;
      board_.point = news;
      board_.tell(Tell::kPoint);
    }
  }

 private:
  // Before 2.29 NCCL refuses a communicator the zero-CTA policy. Ways that it has are measured all the same.
  bool offers(Way way) {
    constexpr int kZeroPolicy = 22900;
    int version = 0;
    if (way != Way::kCopyEngine || rank_.nccl().get_version(&version) != kNcclSuccess || version >= kZeroPolicy) {
      return true;
    }
    if (rank_.rank() == 0 && !said_) {
      std::fprintf(stderr, "powerccl-bench: copy-engine is left out: it needs NCCL 2.29 or newer (--nccl FILE)\n");
    }
    said_ = true;
    return false;
  }

  // The computation alone, again for each way and clock: the GPU's temperature and clock follow what has run.
  void compute_beside(const Point& point, Measurement& measurement) {
    if (load_ != nullptr && load_for_.beside == point.beside && load_for_.way == point.way &&
        load_for_.clock_mhz == point.clock_mhz) {
      return;
    }
    load_.reset();
    load_ = std::make_unique<Units>(rank_, point.beside, options_.products, "--beside");
    load_for_ = point;
    LoadNews news = measurement.measure_load(*load_);
    news.beside = point.beside;
    unit_us_ = news.unit_us;
    if (rank_.rank() != 0) return;
    board_.load = news;
    board_.tell(Tell::kLoad);
  }

  bool set_clock(int mhz) {
    double refused = 0;
    if (rank_.rank() == 0) {
      board_.clock_mhz = mhz;
      refused = board_.tell(Tell::kClock);
    }
    return board_.max(rank_.rank(), refused) == 0;
  }

  const Options& options_;
  const std::vector<Point>& plan_;
  Rank& rank_;
  Board& board_;
  std::unique_ptr<Units> load_;
  Point load_for_{};  // of these points' way, clock and computation
  double unit_us_ = 0;
  bool said_ = false;
};

}  // namespace

void run_sweep(const Options& options, const std::vector<Point>& plan, Rank& rank) {
  Sweep(options, plan, rank).run();
}

}  // namespace powerccl::bench
