// SPDX-License-Identifier: Apache-2.0
// One clock for a whole job: the lowest at which its iterations take no longer than a budget allows, found by running
// some of them at one clock and some at the default. Where power is what limits computation, that is far below the
// GPU's maximum, and communication saves the difference.
#ifndef POWERCCL_POLICY_CLOCK_SEARCH_H
#define POWERCCL_POLICY_CLOCK_SEARCH_H
#include <stdint.h>

namespace powerccl {

// Not for several threads at once.
class ClockSearch {
 public:
  static constexpr uint32_t kStepMhz = 15;  // of NVIDIA's clocks
  struct Terms {
    uint32_t most_mhz = 0, least_mhz = 0;  // tried are clocks between them
    uint32_t step_mhz = kStepMhz;
    double first_mhz = 0;     // where computation was seen to run by itself; 0: not known
    uint32_t guess_mhz = 0;   // what was found for the same GPUs before; 0: nothing
    double slowdown = 0.005;  // that the clock may cost, as a fraction
    double most = 0.01;       // that it may cost at worst, as far as can be told
    // Iterations that are compared with, which nothing is to be managed in; so many that windows have to settle, at the
    // default clock; and those at each clock that is tried, the first third of which is not counted: boost and power
    // limits average over a second or so.
    uint32_t reference = 12, between = 0, block = 9;
    double weight = 0;  // of the steady part: its slowdown times this is that of an iteration
  };
  // Starts with the iteration `from`.
  void begin(const Terms& terms, uint64_t from);
  bool begun() const { return terms_.most_mhz != 0; }

  // The clock for an iteration, the default (0) included. Iterations are asked about in ascending order.
  uint32_t clock(uint64_t iteration) const;
  // Whether it is one to compare with: nothing is to be managed in it.
  bool reference(uint64_t iteration) const {
    return !done_ && iteration >= from_ && (iteration - from_ < terms_.reference || given_up_);
  }
  // The same of those before any clock was tried.
  bool first_reference(uint64_t iteration) const { return iteration >= from_ && iteration - from_ < terms_.reference; }
  // How long it took. `computing`: the share of an iteration that slows down as the clock falls, as far as is known.
  // `steady_ns`: how long the part of it took that is the same in each; 0: not known.
  void iteration(uint64_t iteration, uint64_t duration_ns, double computing, double steady_ns = 0);

  // Windows alone, which have settled by now, clearly cost more than all may: no clock is worth trying beside them.
  bool windows_too_slow() const { return windows_too_slow_; }
  bool done() const { return done_; }
  // Of what was found the clock that most iterations have; 0: none but the default. Some may be a step lower: a step
  // costs more than a budget may have left, so part of one is had by turns.
  uint32_t found_mhz() const { return quarters_ > 2 ? best_mhz_ - terms_.step_mhz : best_mhz_; }
  uint32_t tried() const { return tried_; }
  // What was found turned out to cost too much: half of the way back to what it was lowered from, or higher by `part`
  // of the clock, a quarter of a step at least; the default where that is near.
  void raise(double part);
  static constexpr double kMostLower = 0.08;  // of the clock, at a time
  // It turned out to cost less than it may: as much lower as that leaves room for, `part` of the clock, but not as low
  // as was too much before. False: that is less than half of a quarter of a step.
  bool lower(double part);
  // Whether it is below what was proven to cost little.
  bool lowered() const { return best_mhz_ != 0 && lowered_from_ > place(); }

 private:
  static constexpr uint32_t kMostTries = 8;
  static constexpr uint32_t kQuarters = 4;
  static constexpr double kFarTooSlow = 0.04;  // needs no ten iterations to be told

  static constexpr uint32_t kRepeats = 3;  // of a clock whose effect is not clear
  // Deviations by which a clock must be within the budget. What that leaves of it is found out later, from more
  // iterations.
  static constexpr double kSure = 2;
  static constexpr double kClearly = 2.5;  // deviations that windows are beyond the budget
  static constexpr uint32_t kSettled = 8;  // of `between`, the last so many tell
  // Jobs whose iterations differ take more of them to compare with: up to so many times as many, while the mean is not
  // known to this part of the wish.
  static constexpr uint32_t kMostReferences = 4;
  static constexpr double kWellKnown = 0.4;
  static constexpr uint32_t kAhead = 3;  // iterations before the last one that this is decided in
  static constexpr double kDown = 0.88;
  static constexpr double kUnlike =
      0.25;  // by which the rest of an iteration may follow a clock more or less than its steady part
  static constexpr double kMostHigher = 0.05;
  static constexpr double kAbove = 1.15;  // where computation runs by itself: nothing is to be had above that

  // Of iterations, without the longest of each so many: what disturbs a job only ever makes it longer. Left out are as
  // many of what is compared as of what it is compared with, for where iterations differ by themselves the longest are
  // no disturbance.
  struct Sum {
    uint32_t group = 0;  // of so many; a group that is not complete does not count where another is
    uint32_t count = 0;
    void add(double value);
    double mean() const;
    double error_squared() const;  // of the mean

   private:
    struct Part {
      uint32_t count = 0;
      double total = 0, squares = 0;
    };
    Part kept() const;
    Part whole_, present_;  // complete groups without their longest; the group that is not complete, with it
    double longest_ = 0;
  };
  uint32_t counted() const { return terms_.block - (terms_.block + 2) / 3; }

  // Iterations at one clock: how long they took, and how long their steady parts did.
  struct Seen {
    Sum whole, steady;
    void begin(uint32_t group);
    void add(uint64_t duration_ns, double steady_ns);
  };
  // What a clock costs, from whichever of the two tells it better.
  struct Estimate {
    double slowdown = 0;
    double chance = 0, reference_chance = 0;  // of the mean, squared: of this clock's iterations and of the others
  };
  Estimate estimate() const;
  static Estimate compare(const Sum& with, const Sum& reference, double weight);

  void extend_reference();
  void judge(double computing);
  void next(double wish_mhz);
  void try_clock(uint32_t mhz);
  // What was found, in quarters of a step.
  uint32_t place() const { return best_mhz_ / terms_.step_mhz * kQuarters - quarters_; }
  void set_place(uint32_t quarters);

  Terms terms_;
  uint64_t from_ = 0;
  uint32_t candidate_mhz_ = 0, best_mhz_ = 0;
  uint32_t quarters_ = 0;      // of the blocks that are a step below the best
  uint32_t lowered_from_ = 0;  // a place that was proven to cost little
  uint32_t slow_mhz_ = 0;      // the highest clock that was too slow
  uint32_t tried_ = 0;
  bool done_ = false;
  bool given_up_ = false;  // the clock on trial, for the rest of its block
  bool windows_too_slow_ = false;
  uint32_t too_low_ = 0;  // a place that turned out to be
  Seen reference_, with_, windows_;
  double slowdowns_ = 0, chances_ = 0;  // of the clock on trial, over its blocks; the latter squared
  uint32_t references_ = 1;
  uint32_t blocks_ = 0;
};

}  // namespace powerccl
#endif
