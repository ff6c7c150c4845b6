// SPDX-License-Identifier: Apache-2.0
// The training step's part of the report. Energies come last: a counter must have moved past the end of a step first.
#include <algorithm>
#include <vector>

#include "bench/measurement.h"
#include "bench/report.h"

namespace powerccl::bench {
namespace {

std::optional<double> median_of(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional<double>(median(values));
}

}  // namespace

void Report::on_step() {
  const StepNews& step = board_.step;
  steps_.push_back(step);
  if (!step.valid) ++invalid_;
  ++points_;
  std::printf("  %9s  %9.2f  %9.2f  %9.2f  %9.2f  %9.2f  %5.1f%%%s\n",
              step.warmup != 0 ? "warm-up" : std::to_string(step.iteration).c_str(), step.step_ms, step.forward_ms,
              step.backward_ms, step.sync_ms, step.communication_ms, 100 * step.sync_ms / step.step_ms,
              step.valid ? "" : "  invalid");
  std::fflush(stdout);
}

void Report::add_train(json::Object& object) const {
  object.add("model", json::Object()
                          .add("name", model_.name)
                          .add("forward_ms", model_.forward_ms)
                          .add("backward_ms", model_.backward_ms)
                          .add("buckets_bytes", model_.buckets_bytes)
                          .add("dtype", info(model_.type).name)
                          .add("overlap", model_.overlap == Overlap::kNone ? "none" : "backward")
                          .add("sources", json::Object()
                                              .add("forward_ms", model_.times_source)
                                              .add("backward_ms", model_.times_source)
                                              .add("buckets_bytes", model_.buckets_source)
                                              .raw())
                          .raw());
}

Report::StepEnergy Report::energy_of(const StepNews& step) {
  StepEnergy energy;
  if (sampler_ == nullptr || !sampler_->running()) return energy;
  const Window window = sampler_->window(step.start_ns, step.end_ns);
  energy.clock_mhz = window.clock_mean_mhz;
  energy.joules = sampler_->joules_all_gpus(step.start_ns, step.end_ns);
  uint64_t begin = step.end_ns, end = step.start_ns;
  for (int i = 0; i < step.buckets; ++i) {
    begin = std::min(begin, step.bucket_start_ns[i]);
    end = std::max(end, step.bucket_end_ns[i]);
  }
  if (begin < end) energy.communication_joules = sampler_->joules_all_gpus(begin, end);
  return energy;
}

json::Object Report::step_object(const StepNews& step, const StepEnergy& energy) const {
  const double gpus = board_.ranks();
  const auto each = [&](const std::optional<double>& all) {
    return all ? std::optional<double>(*all / gpus) : std::nullopt;
  };
  std::vector<json::Raw> buckets;
  buckets.reserve(static_cast<size_t>(step.buckets));
  for (int i = 0; i < step.buckets; ++i) {
    buckets.push_back(json::Object()
                          .add("bytes", model_.buckets_bytes[static_cast<size_t>(i)])
                          .add("start_ns", step.bucket_start_ns[i])
                          .add("end_ns", step.bucket_end_ns[i])
                          .raw());
  }
  const double seconds = static_cast<double>(step.end_ns - step.start_ns) * 1e-9;
  const auto joules = each(energy.joules);
  json::Object object;
  object.add("iteration", step.iteration)
      .add("warmup", step.warmup != 0)
      .add("valid", step.valid)
      .add("step_ms", step.step_ms)
      .add("forward_ms", step.forward_ms)
      .add("backward_ms", step.backward_ms)
      .add("sync_ms", step.sync_ms)
      .add("communication_ms", step.communication_ms)
      .add("communication_share", step.sync_ms / step.step_ms)
      .add("start_ns", step.start_ns)
      .add("forward_end_ns", step.forward_end_ns)
      .add("backward_end_ns", step.backward_end_ns)
      .add("end_ns", step.end_ns)
      .add("buckets", buckets)
      .add("joules_per_gpu", joules)
      .add("joules_all_gpus", energy.joules)
      .add("communication_joules_per_gpu", each(energy.communication_joules))
      .add("communication_joules_all_gpus", energy.communication_joules)
      .add("watts_per_gpu", joules ? std::optional<double>(*joules / seconds) : std::nullopt)
      .add("sm_clock_mhz", energy.clock_mhz);
  return object;
}

void Report::conclude_train() {
  if (steps_.empty()) return;
  sampler_->wait_past(steps_.back().end_ns);
  std::vector<double> step_ms, forward_ms, backward_ms, sync_ms, share, joules, communication_joules, watts;
  const double gpus = board_.ranks();
  for (const StepNews& step : steps_) {
    const StepEnergy energy = energy_of(step);
    results_.push_back(step_object(step, energy).raw());
    if (step.warmup != 0) continue;
    step_ms.push_back(step.step_ms);
    forward_ms.push_back(step.forward_ms);
    backward_ms.push_back(step.backward_ms);
    sync_ms.push_back(step.sync_ms);
    share.push_back(step.sync_ms / step.step_ms);
    if (energy.joules) {
      joules.push_back(*energy.joules / gpus);
      watts.push_back(*energy.joules / gpus / static_cast<double>(step.end_ns - step.start_ns) * 1e9);
    }
    if (energy.communication_joules) communication_joules.push_back(*energy.communication_joules / gpus);
  }
  auto joules_each = median_of(joules);
  auto watts_each = median_of(watts);
  const char* joules_from = joules_each ? "steps" : nullptr;
  if (!joules_each && !step_ms.empty()) {
    // Steps shorter than the counter can tell: their mean over all of them, pauses between them included.
    const StepNews& first =
        *std::find_if(steps_.begin(), steps_.end(), [](const StepNews& step) { return step.warmup == 0; });
    const uint64_t end_ns = steps_.back().end_ns;
    if (const auto all = sampler_->joules_all_gpus(first.start_ns, end_ns)) {
      joules_each = *all / gpus / static_cast<double>(step_ms.size());
      watts_each = *all / gpus / static_cast<double>(end_ns - first.start_ns) * 1e9;
      joules_from = "stretch";
    }
  }
  double whole_s = 0;
  for (const double ms : step_ms) whole_s += ms * 1e-3;
  const auto per_second =
      whole_s > 0 ? std::optional<double>(static_cast<double>(step_ms.size()) / whole_s) : std::nullopt;
  summary_.add("iterations", step_ms.size())
      .add("step_ms", median_of(step_ms))
      .add("forward_ms", median_of(forward_ms))
      .add("backward_ms", median_of(backward_ms))
      .add("sync_ms", median_of(sync_ms))
      .add("communication_share", median_of(share))
      .add("joules_per_gpu", joules_each)
      .add("joules_all_gpus", joules_each ? std::optional<double>(*joules_each * gpus) : std::nullopt)
      .add("communication_joules_per_gpu", median_of(communication_joules))
      .add("watts_per_gpu", watts_each)
      .add("joules_from", joules_from != nullptr ? std::optional<std::string>(joules_from) : std::nullopt)
      .add("steps_per_s", per_second);
  std::printf("#\n# Median step           : %g ms, communication %.1f %%\n", median(step_ms), 100 * median(share));
  if (joules_each) {
    std::printf("# %-21s : %g J per GPU, %g W\n", joules.empty() ? "Mean energy a step" : "Median energy a step",
                *joules_each, watts_each.value_or(0));
  } else {
    std::printf("# Median energy a step  : N/A\n");
  }
  std::printf("#\n");
}

}  // namespace powerccl::bench
