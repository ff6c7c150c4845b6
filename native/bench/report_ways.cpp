// SPDX-License-Identifier: Apache-2.0
// Ways of a collective side by side, alone and beside computation.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "bench/columns.h"
#include "bench/report.h"
#include "bench/report_json.h"

namespace powerccl::bench {

void Report::on_load() {
  const LoadNews& news = board_.load;
  Window window;
  if (options_.energy) window = sampler_->window(news.start_ns, news.end_ns);
  load_ = TimeAndPower{news.unit_us, std::nullopt};
  if (news.emulated_joules >= 0 && options_.energy) {
    load_->watts_per_gpu = news.emulated_joules / board_.ranks() / (news.unit_us * 1e-6);
  } else if (!window.source.empty()) {
    load_->watts_per_gpu = window.watts_per_gpu;
  }
  std::printf("# beside: %s, %s us a unit alone, %s W, %s MHz\n", name_of(news.beside),
              short_cell(load_->us, 0).c_str() + 2, short_cell(load_->watts_per_gpu, 0).c_str() + 2,
              cell(window.clock_mean_mhz, 0, 0).c_str() + 2);
  std::fflush(stdout);
}

std::optional<BesideCost> Report::cost_of(const Point& point, const PointNews& news, const Window& window) const {
  if (point.beside == Beside::kNothing || !load_) return std::nullopt;
  TimeAndPower operation{news.time_us, std::nullopt};
  if (!window.source.empty()) operation.watts_per_gpu = window.watts_per_gpu;
  return beside_cost(operation, news.unit_us, *load_);
}

void Report::way_line(const Point& point) {
  if (point.way == way_) return;
  way_ = point.way;
  std::printf("# way: %s\n", info(point.way).name);
}

// A line a pattern, size and way: what it takes alone, and what it costs beside each computation.
void Report::ways_table() const {
  std::printf("#\n# %14s  %12s  %11s  %19s", "pattern", "size(B)", "way", "alone");
  for (const Beside beside : options_.besides) {
    if (beside != Beside::kNothing) std::printf("  %39s", ("beside " + std::string(name_of(beside))).c_str());
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

}  // namespace powerccl::bench
