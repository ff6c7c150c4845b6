// SPDX-License-Identifier: Apache-2.0
// A sweep's part of the report: points, and the computation that they are measured beside.
#include <algorithm>
#include <vector>

#include "bench/replay.h"
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

// A scenario's part of the report. Energies come last: a counter must have moved past the end of an iteration first.
namespace {

using json::when;
using Time = double IterationTimes::*;

constexpr double kLeastCountedS = 1;  // a counter that moves every 100 ms tells too little of less

class ScenarioReport : public Report {
 public:
  ScenarioReport(const Options& options, const Setting& setting, const Launch& launch, const Scenario& scenario)
      : Report(options, setting, launch), scenario_(scenario) {}

 protected:
  void add_mode(json::Object& object) const override {
    std::vector<json::Raw> groups;
    groups.reserve(scenario_.groups.size());
    for (const Group& group : scenario_.groups) {
      groups.push_back(json::Object()
                           .add("name", group.name)
                           .add("size", when(group.size > 0, group.size))
                           .add("stride", when(group.stride > 0, group.stride))
                           .raw());
    }
    std::optional<int> agreed = iterations_of(options_, scenario_);
    if (options_.seconds) agreed = when(board_.iterations > 0, static_cast<int>(board_.iterations));
    object.add("scenario", json::Object()
                               .add("name", scenario_.name)
                               .add("file", scenario_.file)
                               .add("iterations", agreed)
                               .add("seed", scenario_.seed)
                               .add("streams", scenario_.streams)
                               .add("groups", groups)
                               .raw());
  }

  void on_news(Tell what) override {
    if (what != Tell::kIteration) return;
    const IterationNews& news = board_.iteration;
    iterations_.push_back(news);
    write_line("iteration", times_object(news));
  }

  void on_end() override {
    if (iterations_.empty()) return;
    const double ranks = board_.ranks();
    const uint64_t end_ns = end_of(iterations_.back()).end_ns;
    sampler_->wait_past(end_ns);
    std::vector<double> step, compute, communication, exposed, joules_all;
    uint64_t start_ns = 0;
    const auto keep = [](std::vector<double>& all, std::optional<double> value) {
      if (value) all.push_back(*value);
    };
    for (const IterationNews& iteration : iterations_) {
      results_.push_back(iteration_object(iteration).raw());
      if (iteration.warmup != 0) continue;
      if (start_ns == 0) start_ns = iteration.start_ns;
      const auto [step_ms, step_end_ns] = end_of(iteration);
      step.push_back(step_ms);
      keep(compute, mean(iteration, &IterationTimes::compute_ms));
      keep(communication, mean(iteration, &IterationTimes::communication_ms));
      keep(exposed, mean(iteration, &IterationTimes::exposed_ms));
      keep(joules_all, joules(iteration.start_ns, step_end_ns));
    }
    // Of the whole run, pauses between iterations included: a short one's energy is not known.
    const double run_s = start_ns != 0 ? static_cast<double>(end_ns - start_ns) * 1e-9 : 0;
    const auto run_joules = start_ns != 0 ? joules(start_ns, end_ns) : std::nullopt;
    const double run_each = run_joules.value_or(0) / ranks;
    const auto joules_each = median_of(joules_all);
    const auto per_iteration = joules_per_iteration(start_ns, end_ns, step.size(), run_joules);
    summary_.add("iterations", step.size())
        .add("step_ms", median_of(step))
        .add("compute_ms", median_of(compute))
        .add("communication_ms", median_of(communication))
        .add("exposed_ms", median_of(exposed))
        .add("joules_per_gpu", when(joules_each.has_value(), joules_each.value_or(0) / ranks))
        .add("joules_per_iteration", per_iteration)
        .add("energy_reason", per_iteration ? std::nullopt : std::optional<std::string>(why_no_energy(run_s)))
        .add("run_s", run_s)
        .add("run_joules_per_gpu", when(run_joules.has_value(), run_each))
        .add("run_joules_all_gpus", run_joules)
        .add("watts_per_gpu", when(run_joules.has_value(), run_each / run_s));
  }

  json::Object summary() const override { return summary_; }

 private:
  struct End {
    double step_ms;  // of the slowest rank
    uint64_t end_ns;
  };

  End end_of(const IterationNews& iteration) const {
    double step_ms = 0;
    for (int rank = 0; rank < board_.ranks(); ++rank) step_ms = std::max(step_ms, iteration.ranks[rank].step_ms);
    return {step_ms, iteration.start_ns + static_cast<uint64_t>(step_ms * 1e6)};
  }

  std::vector<std::optional<double>> of_ranks(const IterationNews& iteration, Time time) const {
    std::vector<std::optional<double>> all;
    all.reserve(static_cast<size_t>(board_.ranks()));
    for (int rank = 0; rank < board_.ranks(); ++rank) {
      const double ms = iteration.ranks[rank].*time;
      all.push_back(when(ms >= 0, ms));
    }
    return all;
  }

  // Mean of all ranks; nothing where one does not know.
  std::optional<double> mean(const IterationNews& iteration, Time time) const {
    double sum = 0;
    for (const auto& each : of_ranks(iteration, time)) {
      if (!each) return std::nullopt;
      sum += *each;
    }
    return sum / board_.ranks();
  }

  json::Object times_object(const IterationNews& iteration) const {
    const auto [step_ms, end_ns] = end_of(iteration);
    return json::Object()
        .add("iteration", iteration.iteration)
        .add("warmup", iteration.warmup != 0)
        .add("step_ms", step_ms)
        .add("compute_ms", mean(iteration, &IterationTimes::compute_ms))
        .add("communication_ms", mean(iteration, &IterationTimes::communication_ms))
        .add("exposed_ms", mean(iteration, &IterationTimes::exposed_ms))
        .add("compute_ms_of_ranks", of_ranks(iteration, &IterationTimes::compute_ms))
        .add("exposed_ms_of_ranks", of_ranks(iteration, &IterationTimes::exposed_ms))
        .add("start_ns", iteration.start_ns)
        .add("end_ns", end_ns);
  }

  json::Object iteration_object(const IterationNews& iteration) const {
    const auto [step_ms, end_ns] = end_of(iteration);
    const auto all = joules(iteration.start_ns, end_ns);
    const double each = all.value_or(0) / board_.ranks();
    return times_object(iteration)
        .add("joules_per_gpu", when(all.has_value(), each))
        .add("joules_all_gpus", all)
        .add("watts_per_gpu", when(all.has_value(), each / step_ms * 1e3))
        .add("sm_clock_mhz", clock_mhz(iteration.start_ns, end_ns));
  }

  // Alike iterations are a steady load: their power is that between the counter's updates inside the run. At its edges
  // an update also covers what was before or behind. Sections differ, so theirs is the energy of the whole run.
  std::optional<double> joules_per_iteration(uint64_t start_ns, uint64_t end_ns, size_t iterations,
                                             std::optional<double> run_joules) const {
    const double run_s = static_cast<double>(end_ns - start_ns) * 1e-9;
    if (!sampler_->running() || !sampler_->counts() || iterations == 0 || run_s < kLeastCountedS) return std::nullopt;
    if (scenario_.sections.size() == 1) {
      const Window window = sampler_->window(start_ns, end_ns);
      run_joules = when(!window.source.empty(), window.watts_all_gpus * run_s);
    }
    return when(run_joules.has_value(), run_joules.value_or(0) / static_cast<double>(iterations));
  }

  const char* why_no_energy(double run_s) const {
    if (!options_.energy) return "--no-energy";
    if (!sampler_->running()) return "there is no NVML";
    if (!sampler_->counts()) return "NVML has no energy counter";
    return run_s < kLeastCountedS ? "the run takes less than a second: --seconds makes it longer"
                                  : "the counter moved too seldom";
  }

  const Scenario& scenario_;
  std::vector<IterationNews> iterations_;
  json::Object summary_;
};

}  // namespace

std::unique_ptr<Report> scenario_report(const Options& options, const Setting& setting, const Launch& launch,
                                        const Scenario& scenario) {
  return std::make_unique<ScenarioReport>(options, setting, launch, scenario);
}

}  // namespace powerccl::bench
