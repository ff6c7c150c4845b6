// SPDX-License-Identifier: Apache-2.0
// The training step's part of the report. Energies come last: a counter must have moved past the end of a step first.
#include <algorithm>
#include <vector>

#include "bench/measurement.h"
#include "bench/report.h"

namespace powerccl::bench {
namespace {

using json::when;

class TrainReport : public Report {
 public:
  TrainReport(const Options& options, const Setting& setting, const Launch& launch, const Model& model)
      : Report(options, setting, launch), model_(model) {}

 protected:
  void table_header() override {
    std::printf("# Model %s: forward %g ms, backward %g ms, %zu buckets of %s, overlap %s\n#\n", model_.name.c_str(),
                model_.forward_ms, model_.backward_ms, model_.buckets_bytes.size(), info(model_.type).name, overlap());
    std::printf("# %9s  %9s  %9s  %9s  %9s  %9s  %6s\n", "iteration", "step(ms)", "forward", "backward", "sync", "comm",
                "share");
  }

  void on_news(Tell what) override {
    if (what != Tell::kStep) return;
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

  void add_mode(json::Object& object) const override {
    object.add("model", json::Object()
                            .add("name", model_.name)
                            .add("forward_ms", model_.forward_ms)
                            .add("backward_ms", model_.backward_ms)
                            .add("buckets_bytes", model_.buckets_bytes)
                            .add("dtype", info(model_.type).name)
                            .add("overlap", overlap())
                            .add("sources", json::Object()
                                                .add("forward_ms", model_.times_source)
                                                .add("backward_ms", model_.times_source)
                                                .add("buckets_bytes", model_.buckets_source)
                                                .raw())
                            .raw());
  }

  void table_end() override {
    if (steps_.empty()) return;
    sampler_->wait_past(steps_.back().end_ns);
    std::vector<double> step_ms, forward_ms, backward_ms, sync_ms, share, joules_each, watts_each, communication_joules;
    const double gpus = board_.ranks();
    uint64_t begin_ns = 0;  // of the first step that is no warm-up
    double whole_s = 0;
    for (const StepNews& step : steps_) {
      const Energy energy = energy_of(step);
      results_.push_back(step_object(step, energy).raw());
      if (step.warmup != 0) continue;
      if (step_ms.empty()) begin_ns = step.start_ns;
      step_ms.push_back(step.step_ms);
      forward_ms.push_back(step.forward_ms);
      backward_ms.push_back(step.backward_ms);
      sync_ms.push_back(step.sync_ms);
      share.push_back(step.sync_ms / step.step_ms);
      whole_s += step.step_ms * 1e-3;
      if (energy.joules) {
        joules_each.push_back(*energy.joules / gpus);
        watts_each.push_back(joules_each.back() / seconds(step.start_ns, step.end_ns));
      }
      if (energy.communication_joules) communication_joules.push_back(*energy.communication_joules / gpus);
    }
    auto joules_a_step = median_of(joules_each), watts = median_of(watts_each);
    const char* joules_from = "steps";
    const auto steps = static_cast<double>(step_ms.size());
    if (!joules_a_step && !step_ms.empty()) {
      // Steps shorter than the counter can tell: their mean over all of them, pauses between them included.
      const uint64_t end_ns = steps_.back().end_ns;
      if (const auto all = sampler_->joules_all_gpus(begin_ns, end_ns)) {
        joules_a_step = *all / gpus / steps;
        watts = *all / gpus / seconds(begin_ns, end_ns);
        joules_from = "stretch";
      }
    }
    summary_.add("iterations", step_ms.size())
        .add("step_ms", median_of(step_ms))
        .add("forward_ms", median_of(forward_ms))
        .add("backward_ms", median_of(backward_ms))
        .add("sync_ms", median_of(sync_ms))
        .add("communication_share", median_of(share))
        .add("joules_per_gpu", joules_a_step)
        .add("joules_all_gpus", when(joules_a_step.has_value(), joules_a_step.value_or(0) * gpus))
        .add("communication_joules_per_gpu", median_of(communication_joules))
        .add("watts_per_gpu", watts)
        .add("joules_from", when(joules_a_step.has_value(), joules_from))
        .add("steps_per_s", when(whole_s > 0, steps / whole_s));
    std::printf("#\n# Median step           : %g ms, communication %.1f %%\n", median(step_ms), 100 * median(share));
    if (joules_a_step) {
      std::printf("# %-21s : %g J per GPU, %g W\n#\n",
                  joules_each.empty() ? "Mean energy a step" : "Median energy a step", *joules_a_step,
                  watts.value_or(0));
    } else {
      std::printf("# Median energy a step  : N/A\n#\n");
    }
  }

 private:
  struct Energy {
    std::optional<double> joules, communication_joules, mhz;  // of all GPUs
  };

  const char* overlap() const { return model_.overlap == Overlap::kNone ? "none" : "backward"; }
  static double seconds(uint64_t from_ns, uint64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

  Energy energy_of(const StepNews& step) const {
    uint64_t begin = step.end_ns, end = step.start_ns;  // of communication
    for (int i = 0; i < step.buckets; ++i) {
      begin = std::min(begin, step.bucket_start_ns[i]);
      end = std::max(end, step.bucket_end_ns[i]);
    }
    return {joules(step.start_ns, step.end_ns), begin < end ? joules(begin, end) : std::nullopt,
            clock_mhz(step.start_ns, step.end_ns)};
  }

  json::Object step_object(const StepNews& step, const Energy& energy) const {
    const auto each = [&](const std::optional<double>& all) {
      return when(all.has_value(), all.value_or(0) / board_.ranks());
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
    const auto joules_each = each(energy.joules);
    return json::Object()
        .add("iteration", step.iteration)
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
        .add("joules_per_gpu", joules_each)
        .add("joules_all_gpus", energy.joules)
        .add("communication_joules_per_gpu", each(energy.communication_joules))
        .add("communication_joules_all_gpus", energy.communication_joules)
        .add("watts_per_gpu",
             when(joules_each.has_value(), joules_each.value_or(0) / seconds(step.start_ns, step.end_ns)))
        .add("sm_clock_mhz", energy.mhz);
  }

  const Model& model_;
  std::vector<StepNews> steps_;
};

}  // namespace

std::unique_ptr<Report> train_report(const Options& options, const Setting& setting, const Launch& launch,
                                     const Model& model) {
  return std::make_unique<TrainReport>(options, setting, launch, model);
}

}  // namespace powerccl::bench
