// SPDX-License-Identifier: Apache-2.0
// What stands on stdout: NCCL tests' table for a sweep, one line an iteration for a training step.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "bench/columns.h"
#include "bench/report.h"
#include "bench/report_json.h"
#include "bench/version.h"

namespace powerccl::bench {
void Report::table_header() {
  std::printf("# powerccl-bench version %s nccl-library=%d (%s)\n", kVersion, start_.nccl_version, start_.nccl_path);
  std::printf("# Using devices\n");
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const RankAbout& about = board_.about[rank];
    std::printf("#  Rank %2d device %2d [%s] %s\n", rank, about.device, about.pci, about.name);
  }
  if (setting_.emulated) std::printf("# Emulated GPUs: every figure below is modelled, none is measured\n");
  if (setting_.emulated && !setting_.moves_data) {
    std::printf("# Emulated collectives take their time but move no data (POWERCCL_EMULATOR_MOVE_DATA=0)\n");
  }
  if (setting_.clock_control == "dry" || setting_.clock_control == "refused") {
    std::printf("# Clocks are left as found: %s\n", setting_.clock_reason.c_str());
  }
  if (options_.mode == Mode::kTrain) {
    std::printf("# Model %s: forward %g ms, backward %g ms, %zu buckets of %s, overlap %s\n#\n", model_.name.c_str(),
                model_.forward_ms, model_.backward_ms, model_.buckets_bytes.size(), info(model_.type).name,
                model_.overlap == Overlap::kNone ? "none" : "backward");
    std::printf("# %9s  %9s  %9s  %9s  %9s  %9s  %6s\n", "iteration", "step(ms)", "forward", "backward", "sync", "comm",
                "share");
    return;
  }
  if (options_.mode == Mode::kScenario) return scenario_header();
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
  std::fflush(stdout);
}

void Report::table_line(const Point& point, const PointNews& news, const Window& window) {
  way_line(point);
  const PatternInfo& about = info(point.pattern);
  if (!point.in_place) {
    if (line_open_) std::printf("\n");
    std::printf("%16s  %12zu  %12zu  %8s  %6s  %4d", about.name, point.shape.size_bytes, point.shape.count,
                info(point.type).nccl_tests, about.reduces ? info(point.op).name : "none",
                about.has_root ? point.root : -1);
  } else {
    std::printf("%9s", "");
  }
  const double algbw = algbw_gbs(point, news);
  const bool known = !window.source.empty();
  std::string line =
      short_cell(news.time_us, 7) + cell(algbw, 2, 6) + cell(algbw * bus_factor(point.pattern, board_.ranks()), 2, 6);
  line += news.wrong < 0 ? cell({}, 0, 6) : cell(static_cast<double>(news.wrong), 0, 6);
  line += cell(window.clock_mean_mhz, 0, 6);
  line += cell(known ? std::optional<double>(window.watts_per_gpu) : std::nullopt, 2, 7);
  const bool only_its = known && point.beside == Beside::kNothing;  // else the computation's joules are among them
  line += cell(only_its ? std::optional<double>(window.watts_per_gpu * news.time_us * 1e-6) : std::nullopt, 5, 8);
  if (!news.valid) line += "  invalid";
  if (compares() && news.valid) {
    measured_.push_back({point, news.time_us,
                         known ? std::optional<double>(window.watts_per_gpu * news.time_us * 1e-6) : std::nullopt,
                         cost_of(point, news, window)});
  }
  std::printf("%s", line.c_str());
  line_open_ = !point.in_place && options_.in_place && about.in_place;
  if (!line_open_) std::printf("\n");
  std::fflush(stdout);
}

}  // namespace powerccl::bench
