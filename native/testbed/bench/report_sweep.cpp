// SPDX-License-Identifier: Apache-2.0
// A sweep's part of the report: points, and the computation that they are measured beside.
#include <algorithm>

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
  void on_news(Tell what) override {
    if (what == Tell::kLoad) on_load();
    if (what == Tell::kPoint) on_point();
  }

  json::Object summary() const override {
    return json::Object()
        .add("points", points_)
        .add("invalid", invalid_)
        .add("skipped", setting_.skipped_points)
        .add("wrong", wrong_)
        .add("avg_busbw_gbs", json::when(points_ > 0, bandwidth_sum_ / static_cast<double>(points_)))
        .add("nvml_error", sampler_ ? unless_empty(sampler_->trouble()) : std::nullopt);
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
    write_line("load", json::Object()
                           .add("beside", info(news.beside).name)
                           .add("unit_us", load_->us)
                           .add("watts_per_gpu", load_->watts_per_gpu)
                           .add("sm_clock_mhz", window.clock_mean_mhz));
  }

  void on_point() {
    const PointNews news = board_.point;
    const Point& point = plan_[news.index];
    if (setting_.clock_control == "set" && !clock_holds()) return;  // at which clock this was is not known
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
    write_line("point", object, true);
  }

  std::optional<BesideCost> cost_of(const Point& point, const PointNews& news, const Window& window) const {
    if (point.beside == Beside::kNothing || !load_) return std::nullopt;
    TimeAndPower operation{news.time_us, std::nullopt};
    if (!window.source.empty()) operation.watts_per_gpu = window.watts_per_gpu;
    return beside_cost(operation, news.unit_us, *load_);
  }

  const std::vector<Point>& plan_;
  std::optional<TimeAndPower> load_;  // a unit of the last computation alone
  double bandwidth_sum_ = 0;
};

}  // namespace

std::unique_ptr<Report> sweep_report(const Options& options, const Setting& setting, const Launch& launch,
                                     const std::vector<Point>& plan) {
  return std::make_unique<SweepReport>(options, setting, launch, plan);
}

}  // namespace powerccl::bench
