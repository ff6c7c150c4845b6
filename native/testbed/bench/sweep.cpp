// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "bench/measurement.h"

namespace powerccl::bench {
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
