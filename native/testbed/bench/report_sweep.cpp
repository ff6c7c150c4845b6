// SPDX-License-Identifier: Apache-2.0
// A sweep's part of the report: NCCL tests' table, and ways of a collective side by side, alone and beside computation.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "bench/report.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kRememberNs = 1'000'000'000;

class SweepReport : public Report {
 public:
  SweepReport(const Options& options, const Setting& setting, const Launch& launch, const std::vector<Point>& plan)
      : Report(options, setting, launch), plan_(plan) {}

 protected:
  void table_header() override {
    std::printf("# minBytes %zu maxBytes %zu step: ", options_.min_bytes, options_.max_bytes);
    if (options_.step_bytes > 0) {
      std::printf("%zu(bytes)", options_.step_bytes);
    } else {
      std::printf("%g(factor)", options_.factor);
    }
    std::printf(" warmup iters: %d iters: %d validation: %d graph: %d\n", options_.warmup, options_.iterations,
                options_.check, options_.graph_launches);
    if (setting_.skipped_points > 0)
      std::printf("# left out, since done before: %zu of the points\n", setting_.skipped_points);
    std::printf("#\n# time: per operation; watts: mean per GPU; joules: per operation and GPU\n#\n");
    const char* block = "     time   algbw   busbw  #wrong   clock    watts    joules";
    std::printf("# %14s  %12s  %12s  %8s  %6s  %4s%s%s\n", "pattern", "size", "count", "type", "redop", "root", block,
                options_.in_place ? "  in-place: time   algbw   busbw  #wrong   clock    watts    joules" : "");
    std::printf("# %14s  %12s  %12s  %8s  %6s  %4s     (us)  (GB/s)  (GB/s)           (MHz)      (W)       (J)\n", "",
                "(B)", "(elements)", "", "", "");
  }

  void on_news(Tell what) override {
    if (what == Tell::kLoad) on_load();
    if (what == Tell::kPoint) on_point();
  }

  void table_end() override {
    if (line_open_) std::printf("\n");
    if (points_ > 0) {
      std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong_), wrong_ != 0 ? "FAILED" : "OK");
      std::printf("# Avg bus bandwidth    : %g\n", bandwidth_sum_ / static_cast<double>(points_));
    } else {
      std::printf("# Out of bounds values : N/A\n# Avg bus bandwidth    : N/A (no point was measured in this run)\n");
    }
    if (!measured_.empty()) ways_table();
    if (!sampler_->trouble().empty()) std::printf("# NVML failed at times  : %s\n", sampler_->trouble().c_str());
    std::printf("#\n");
  }

  json::Object summary() const override {
    return json::Object()
        .add("points", points_)
        .add("skipped", setting_.skipped_points)
        .add("wrong", wrong_)
        .add("avg_busbw_gbs", json::when(points_ > 0, bandwidth_sum_ / static_cast<double>(points_)));
  }

 private:
  void on_load() {
    const LoadNews& news = board_.load;
    Window window;
    if (options_.energy) window = sampler_->window(news.start_ns, news.end_ns);
    load_ = TimeAndPower{news.unit_us, std::nullopt};
    if (news.emulated_joules >= 0 && options_.energy) {
      load_->watts_per_gpu = news.emulated_joules / board_.ranks() / (news.unit_us * 1e-6);
    } else if (!window.source.empty()) {
      load_->watts_per_gpu = window.watts_per_gpu;
    }
    std::printf("# beside: %s, %s us a unit alone, %s W, %s MHz\n", info(news.beside).name,
                short_cell(load_->us, 0).c_str() + 2, short_cell(load_->watts_per_gpu, 0).c_str() + 2,
                cell(window.clock_mean_mhz, 0, 0).c_str() + 2);
    std::fflush(stdout);
  }

  void on_point() {
    const PointNews news = board_.point;
    const Point& point = plan_[news.index];
    if (setting_.clock_control == "set" && !clock_holds()) return;  // nobody knows at which clock this was
    Window window;
    window.reason = "--no-energy";
    if (sampler_->running() || options_.energy) window = sampler_->window(news.start_ns, news.end_ns);
    if (options_.energy) take_emulated_energy(news, board_.ranks(), window);
    sampler_->forget_before(news.end_ns > kRememberNs ? news.end_ns - kRememberNs : 0);
    wrong_ += std::max<int64_t>(news.wrong, 0);
    if (!news.valid) ++invalid_;
    bandwidth_sum_ += algbw_gbs(point, news) * bus_factor(point.pattern, board_.ranks());
    ++points_;
    const json::Object object = point_object(point, news, window, board_.ranks(), setting_.clock_control == "set",
                                             cost_of(point, news, window));
    results_.push_back(object.raw());
    if (lines_ != nullptr) write_line(json::Object().add("type", "point").merge(object).text());
    table_line(point, news, window);
  }

  std::optional<BesideCost> cost_of(const Point& point, const PointNews& news, const Window& window) const {
    if (point.beside == Beside::kNothing || !load_) return std::nullopt;
    TimeAndPower operation{news.time_us, std::nullopt};
    if (!window.source.empty()) operation.watts_per_gpu = window.watts_per_gpu;
    return beside_cost(operation, news.unit_us, *load_);
  }

  void table_line(const Point& point, const PointNews& news, const Window& window) {
    if (point.way != way_) std::printf("# way: %s\n", info(point.way).name);
    way_ = point.way;
    const PatternInfo& about = info(point.pattern);
    if (!point.in_place) {
      if (line_open_) std::printf("\n");
      std::printf("%16s  %12zu  %12zu  %8s  %6s  %4d", about.name, point.shape.size_bytes, point.shape.count,
                  info(point.type).nccl_tests, about.reduces ? info(point.op).name : "none",
                  about.has_root() ? point.root : -1);
    } else {
      std::printf("%9s", "");
    }
    const double algbw = algbw_gbs(point, news);
    const bool known = !window.source.empty();
    std::string line =
        short_cell(news.time_us, 7) + cell(algbw, 2, 6) + cell(algbw * bus_factor(point.pattern, board_.ranks()), 2, 6);
    line += news.wrong < 0 ? cell({}, 0, 6) : cell(static_cast<double>(news.wrong), 0, 6);
    line += cell(window.clock_mean_mhz, 0, 6);
    line += cell(json::when(known, window.watts_per_gpu), 2, 7);
    const bool only_its = known && point.beside == Beside::kNothing;  // else the computation's joules are among them
    line += cell(json::when(only_its, window.watts_per_gpu * news.time_us * 1e-6), 5, 8);
    if (!news.valid) line += "  invalid";
    if ((options_.ways.size() > 1 || options_.besides.size() > 1) && news.valid) {
      measured_.push_back({point, news.time_us, json::when(known, window.watts_per_gpu * news.time_us * 1e-6),
                           cost_of(point, news, window)});
    }
    std::printf("%s", line.c_str());
    line_open_ = !point.in_place && options_.in_place && about.in_place;
    if (!line_open_) std::printf("\n");
    std::fflush(stdout);
  }

  // A line a pattern, size and way: what it takes alone, and what it costs beside each computation.
  void ways_table() const {
    std::printf("#\n# %14s  %12s  %11s  %19s", "pattern", "size(B)", "way", "alone");
    for (const Beside beside : options_.besides) {
      if (beside != Beside::kNothing) std::printf("  %39s", ("beside " + std::string(info(beside).name)).c_str());
    }
    std::printf("\n# %14s  %12s  %11s  %9s %9s", "", "", "", "us", "mJ/GPU");
    for (size_t i = 1; i < options_.besides.size(); ++i) {
      std::printf("  %9s %9s %9s %9s", "us", "added us", "added mJ", "slows it");
    }
    std::printf("\n");
    // By pattern and size, then by way.
    std::set<std::string> reported;
    for (const Measured& first : measured_) {
      Point wanted = first.point;
      const auto with = [&](Way way, Beside beside) {
        wanted.way = way;
        wanted.beside = beside;
        return key_of(wanted, board_.ranks());
      };
      if (!reported.insert(with(Way::kAsGiven, Beside::kNothing)).second) continue;
      for (const Way way : options_.ways) {
        const auto measured = [&](Beside beside) {
          const std::string key = with(way, beside);
          return std::ranges::find_if(measured_,
                                      [&](const Measured& each) { return key_of(each.point, board_.ranks()) == key; });
        };
        if (std::ranges::all_of(options_.besides, [&](Beside each) { return measured(each) == measured_.end(); }))
          continue;
        std::printf("# %14s  %12zu  %11s", info(wanted.pattern).name, wanted.shape.size_bytes,
                    way == Way::kAsGiven ? "as given" : info(way).name);
        for (const Beside beside : options_.besides) {
          const auto found = measured(beside);
          const bool known = found != measured_.end();
          const auto mj = [](std::optional<double> joules) { return joules ? std::optional(*joules * 1e3) : joules; };
          std::printf("%s", short_cell(known ? std::optional(found->time_us) : std::nullopt, 9).c_str());
          if (beside == Beside::kNothing) {
            std::printf("%s", cell(known ? mj(found->joules) : std::nullopt, 3, 8).c_str());
            continue;
          }
          const bool costs = known && found->cost.has_value();
          std::printf("%s%s%s%%", short_cell(costs ? std::optional(found->cost->added_us) : std::nullopt, 8).c_str(),
                      cell(costs ? mj(found->cost->added_joules) : std::nullopt, 3, 8).c_str(),
                      cell(costs ? std::optional(found->cost->slowed_pct) : std::nullopt, 1, 7).c_str());
        }
        std::printf("\n");
      }
    }
    if (options_.besides.size() > 1) {
      std::printf("# added: more than the computation done meanwhile takes alone, per operation (mJ of each GPU)\n");
    }
  }

  const std::vector<Point>& plan_;
  struct Measured {
    Point point;
    double time_us;
    std::optional<double> joules;  // of an operation and GPU
    std::optional<BesideCost> cost;
  };
  std::vector<Measured> measured_;    // with ways or computation to compare
  std::optional<TimeAndPower> load_;  // the last computation by itself, a unit
  Way way_ = Way::kAsGiven;           // of the last line
  double bandwidth_sum_ = 0;
  bool line_open_ = false;  // an out-of-place block waits for its in-place one
};

}  // namespace

std::unique_ptr<Report> sweep_report(const Options& options, const Setting& setting, const Launch& launch,
                                     const std::vector<Point>& plan) {
  return std::make_unique<SweepReport>(options, setting, launch, plan);
}

}  // namespace powerccl::bench
