// SPDX-License-Identifier: Apache-2.0
// Whether managing something slows a job, from the job's own iterations: some of them with it, some without.
#ifndef POWERCCL_POLICY_TRIAL_H
#define POWERCCL_POLICY_TRIAL_H
#include <stdint.h>

#include "policy/mean.h"

namespace powerccl {

// Welch's comparison of two means, taken up again with each iteration. An iteration that took very much longer than its
// kind does (a checkpoint, an evaluation) is left out. Where one iteration is short because the one before was long, as
// in a pipeline, the means of several in a row tell how well the mean of all is known. Not for several threads at once.
class Trial {
 public:
  static constexpr uint32_t kFewest = 4;  // iterations of each kind before anything is said
  // After so many of each kind the best guess has to do, unless it is known to no better than this part of the budget;
  // then after so many.
  static constexpr uint32_t kMost = 64, kMostOfAll = 1024;
  static constexpr double kKnown = 0.5;
  static constexpr double kOutlier = 1.5;  // times the mean of its kind
  static constexpr double kSigmas = 2.5;   // looking often finds more by chance than looking once: 99 % of the time

  enum class Verdict { kOpen, kHarmless, kTooSlow };

  void iteration(bool managed, uint64_t duration_ns);
  // Those of one kind are of no use any more.
  void forget(bool managed) { of_[managed ? 1 : 0] = Kind(); }

  struct Interval {
    double low, estimate, high;  // slowdown, as a fraction
  };
  Interval slowdown() const;  // only after kFewest of each kind
  // `budget`: the slowdown that may be, as a fraction.
  Verdict verdict(double budget) const;
  // Whether the slowdown is known too badly to go by the best guess: iterations differ by themselves. Before there are
  // managed ones those that were left alone tell.
  bool unclear(double budget) const {
    if (of_[0].all.count < kFewest) return false;
    const double known = kKnown * budget * of_[0].all.mean;
    const double managed = of_[1].all.count < kFewest ? 0 : variance_of_mean(of_[1]);
    return variance_of_mean(of_[0]) + managed > known * known;
  }
  uint32_t count(bool managed) const { return of_[managed ? 1 : 0].all.count; }

 private:
  static constexpr uint32_t kInARow = 8, kFewestRows = 5;
  // What follows one another cancels no more than this share of a variance, as far as is believed of a few rows.
  static constexpr double kLeastPart = 0.2;
  struct Kind {
    Mean all, rows;  // rows: means of so many in a row
    double row = 0;  // the sum of the one that is not complete
    uint32_t left_out = 0;
  };
  static double variance_of_mean(const Kind& kind);

  Kind of_[2];
};

}  // namespace powerccl
#endif
