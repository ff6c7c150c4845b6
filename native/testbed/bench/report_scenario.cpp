// SPDX-License-Identifier: Apache-2.0
// A scenario's part of the report. Energies come last: a counter must have moved past the end of an iteration first.
#include <algorithm>
#include <vector>

#include "bench/replay.h"
#include "bench/report.h"
#include "bench/values.h"

namespace powerccl::bench {
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
