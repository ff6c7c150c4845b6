// SPDX-License-Identifier: Apache-2.0
// A scenario's part of the report. Energies come last: a counter must have moved past the end of an iteration first.
#include <algorithm>
#include <functional>
#include <vector>

#include "bench/measurement.h"
#include "bench/replay.h"
#include "bench/report.h"

namespace powerccl::bench {
namespace {

using Time = double IterationTimes::*;

constexpr double kLeastCountedS = 1;  // a counter that moves every 100 ms tells too little of less

std::optional<double> known(double ms) {
  return ms < 0 ? std::nullopt : std::optional<double>(ms);
}

std::vector<std::optional<double>> of_ranks(const IterationNews& iteration, int ranks, Time time) {
  std::vector<std::optional<double>> all;
  all.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all.push_back(known(iteration.ranks[rank].*time));
  return all;
}

// Mean of all ranks; nothing where one does not know.
std::optional<double> mean(const IterationNews& iteration, int ranks, Time time) {
  double sum = 0;
  for (const auto& each : of_ranks(iteration, ranks, time)) {
    if (!each) return std::nullopt;
    sum += *each;
  }
  return sum / ranks;
}

std::optional<double> median_of(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional<double>(median(values));
}

std::string cell(std::optional<double> value) {
  char text[24] = "        N/A";
  if (value) std::snprintf(text, sizeof text, "  %9.2f", *value);
  return text;
}

}  // namespace

std::string Report::iterations_text() const {
  if (!options_.seconds) return std::to_string(iterations_of(options_, scenario_));
  char text[48];
  std::snprintf(text, sizeof text, "about %g s", *options_.seconds);
  return text;
}

void Report::scenario_header() const {
  std::printf("# Scenario %s (%s), iterations: %s, seed %llu\n", scenario_.name.c_str(), scenario_.file.c_str(),
              iterations_text().c_str(), static_cast<unsigned long long>(scenario_.seed));
  if (options_.compute != Beside::kNothing) {
    std::printf("# Computation           : %s", compute_name_of(options_.compute));
    if (start_.compute_unit_ms > 0) std::printf(", in units of %.4f ms", start_.compute_unit_ms);
    std::printf("\n");
  }
  std::printf("#\n");
  std::printf("# %9s  %9s  %9s  %9s  %9s\n", "iteration", "step(ms)", "compute", "comm", "exposed");
  std::fflush(stdout);
}

void Report::add_scenario(json::Object& object) const {
  std::vector<json::Raw> groups;
  groups.reserve(scenario_.groups.size());
  for (const Group& group : scenario_.groups) {
    groups.push_back(json::Object()
                         .add("name", group.name)
                         .add("size", group.size > 0 ? std::optional<int>(group.size) : std::nullopt)
                         .add("stride", group.stride > 0 ? std::optional<int>(group.stride) : std::nullopt)
                         .raw());
  }
  std::optional<int> agreed = iterations_of(options_, scenario_);
  if (options_.seconds) agreed = board_.iterations > 0 ? std::optional<int>(board_.iterations) : std::nullopt;
  object.add("scenario", json::Object()
                             .add("name", scenario_.name)
                             .add("file", scenario_.file)
                             .add("iterations", agreed)
                             .add("seed", scenario_.seed)
                             .add("streams", scenario_.streams)
                             .add("groups", groups)
                             .raw());
}

Report::IterationEnd Report::end_of(const IterationNews& iteration) const {
  double step_ms = 0;
  for (int rank = 0; rank < board_.ranks(); ++rank) step_ms = std::max(step_ms, iteration.ranks[rank].step_ms);
  return {step_ms, iteration.start_ns + static_cast<uint64_t>(step_ms * 1e6)};
}

void Report::on_iteration() {
  const IterationNews& news = board_.iteration;
  iterations_.push_back(news);
  const int ranks = board_.ranks();
  std::printf("  %9s%s%s%s%s\n", news.warmup != 0 ? "warm-up" : std::to_string(news.iteration).c_str(),
              cell(end_of(news).step_ms).c_str(), cell(mean(news, ranks, &IterationTimes::compute_ms)).c_str(),
              cell(mean(news, ranks, &IterationTimes::communication_ms)).c_str(),
              cell(mean(news, ranks, &IterationTimes::exposed_ms)).c_str());
  std::fflush(stdout);
}

json::Object Report::iteration_object(const IterationNews& iteration) {
  const int ranks = board_.ranks();
  const auto [step_ms, end_ns] = end_of(iteration);
  std::optional<double> joules, clock_mhz;
  if (sampler_->running()) {
    joules = sampler_->joules_all_gpus(iteration.start_ns, end_ns);
    clock_mhz = sampler_->window(iteration.start_ns, end_ns).clock_mean_mhz;
  }
  const auto each = joules ? std::optional<double>(*joules / ranks) : std::nullopt;
  json::Object object;
  object.add("iteration", iteration.iteration)
      .add("warmup", iteration.warmup != 0)
      .add("step_ms", step_ms)
      .add("compute_ms", mean(iteration, ranks, &IterationTimes::compute_ms))
      .add("communication_ms", mean(iteration, ranks, &IterationTimes::communication_ms))
      .add("exposed_ms", mean(iteration, ranks, &IterationTimes::exposed_ms))
      .add("compute_ms_of_ranks", of_ranks(iteration, ranks, &IterationTimes::compute_ms))
      .add("exposed_ms_of_ranks", of_ranks(iteration, ranks, &IterationTimes::exposed_ms))
      .add("start_ns", iteration.start_ns)
      .add("end_ns", end_ns)
      .add("joules_per_gpu", each)
      .add("joules_all_gpus", joules)
      .add("watts_per_gpu", each ? std::optional<double>(*each / step_ms * 1e3) : std::nullopt)
      .add("sm_clock_mhz", clock_mhz);
  return object;
}

// Alike iterations are a steady load: power between the counter's updates inside the run leaves out its edges, where an
// update covers what was before or behind. Sections differ, so theirs is the energy of the whole run.
std::optional<double> Report::joules_per_iteration(uint64_t start_ns, uint64_t end_ns, size_t iterations,
                                                   std::optional<double> run_joules) {
  const double run_s = static_cast<double>(end_ns - start_ns) * 1e-9;
  if (!sampler_->running() || !sampler_->counts() || iterations == 0 || run_s < kLeastCountedS) return std::nullopt;
  std::optional<double> joules = run_joules;
  if (scenario_.sections.size() == 1) {
    const Window window = sampler_->window(start_ns, end_ns);
    joules = window.source.empty() ? std::nullopt : std::optional<double>(window.watts_all_gpus * run_s);
  }
  return joules ? std::optional<double>(*joules / static_cast<double>(iterations)) : std::nullopt;
}

std::string Report::why_no_energy(double run_s) const {
  if (!options_.energy) return "--no-energy";
  if (!sampler_->running()) return "there is no NVML";
  if (!sampler_->counts()) return "NVML has no energy counter";
  return run_s < kLeastCountedS ? "the run takes less than a second: --seconds makes it longer"
                                : "the counter moved too seldom";
}

void Report::conclude_scenario() {
  if (iterations_.empty()) return;
  const int ranks = board_.ranks();
  sampler_->wait_past(end_of(iterations_.back()).end_ns);
  std::vector<double> step, compute, communication, exposed, joules;
  uint64_t start_ns = 0;
  const uint64_t end_ns = end_of(iterations_.back()).end_ns;
  const auto keep = [](std::vector<double>& all, std::optional<double> value) {
    if (value) all.push_back(*value);
  };
  for (const IterationNews& iteration : iterations_) {
    results_.push_back(iteration_object(iteration).raw());
    if (iteration.warmup != 0) continue;
    if (start_ns == 0) start_ns = iteration.start_ns;
    const auto [step_ms, step_end_ns] = end_of(iteration);
    step.push_back(step_ms);
    keep(compute, mean(iteration, ranks, &IterationTimes::compute_ms));
    keep(communication, mean(iteration, ranks, &IterationTimes::communication_ms));
    keep(exposed, mean(iteration, ranks, &IterationTimes::exposed_ms));
    if (sampler_->running()) keep(joules, sampler_->joules_all_gpus(iteration.start_ns, step_end_ns));
  }
  // Of the whole run: what short iterations cannot tell of themselves, pauses between them included.
  const double run_s = start_ns != 0 ? static_cast<double>(end_ns - start_ns) * 1e-9 : 0;
  std::optional<double> run_joules, watts;
  if (sampler_->running() && start_ns != 0) run_joules = sampler_->joules_all_gpus(start_ns, end_ns);
  if (run_joules) watts = *run_joules / ranks / run_s;
  const auto joules_each = median_of(joules);
  const auto per_iteration = joules_per_iteration(start_ns, end_ns, step.size(), run_joules);
  summary_.add("iterations", step.size())
      .add("step_ms", median_of(step))
      .add("compute_ms", median_of(compute))
      .add("communication_ms", median_of(communication))
      .add("exposed_ms", median_of(exposed))
      .add("joules_per_gpu", joules_each ? std::optional<double>(*joules_each / ranks) : std::nullopt)
      .add("joules_per_iteration", per_iteration)
      .add("run_s", run_s)
      .add("run_joules_per_gpu", run_joules ? std::optional<double>(*run_joules / ranks) : std::nullopt)
      .add("run_joules_all_gpus", run_joules)
      .add("watts_per_gpu", watts);
  std::printf("#\n# Median iteration      :%s ms; compute%s, communication%s, exposed%s\n",
              cell(median_of(step)).c_str(), cell(median_of(compute)).c_str(), cell(median_of(communication)).c_str(),
              cell(median_of(exposed)).c_str());
  if (run_joules) {
    std::printf("# Whole run             : %.3f s, %g J per GPU, %g W\n", run_s, *run_joules / ranks, *watts);
  } else {
    std::printf("# Whole run             : %.3f s, energy N/A\n", run_s);
  }
  if (per_iteration) {
    std::printf("# Energy per iteration  : %g J of all GPUs\n#\n", *per_iteration);
  } else {
    std::printf("# Energy per iteration  : not known (%s)\n#\n", why_no_energy(run_s).c_str());
  }
}

}  // namespace powerccl::bench
