// SPDX-License-Identifier: Apache-2.0
#include "bench/sweep.h"

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
      PointNews news = measurement.measure();
      news.index = i;
      if (rank_.rank() != 0) continue;
      board_.point = news;
      board_.tell(Tell::kPoint);
    }
  }

 private:
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
};

}  // namespace

void run_sweep(const Options& options, const std::vector<Point>& plan, Rank& rank) {
  Sweep(options, plan, rank).run();
}

}  // namespace powerccl::bench
