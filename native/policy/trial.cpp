// SPDX-License-Identifier: Apache-2.0
#include "policy/trial.h"

#include "policy/square_root.h"

namespace powerccl {
void Trial::iteration(bool managed, uint64_t duration_ns) {
  Kind& kind = of_[managed ? 1 : 0];
  const double duration = static_cast<double>(duration_ns);
  // What stays that long is no outlier.
  if (kind.all.count >= kFewest && duration > kOutlier * kind.all.mean && kind.left_out < kFewest) {
    ++kind.left_out;
    return;
  }
  if (kind.left_out >= kFewest) kind = Kind();
  kind.left_out = 0;
  kind.all.add(duration);
  kind.row += duration;
  if (kind.all.count % kInARow != 0) return;
  kind.rows.add(kind.row / kInARow);
  kind.row = 0;
}

double Trial::variance_of_mean(const Kind& kind) {
  const double alone = kind.all.variance_of_mean();
  if (kind.rows.count < kFewestRows) return alone;
  const double in_rows = kind.rows.variance_of_mean();
  return in_rows > alone ? alone : in_rows < kLeastPart * alone ? kLeastPart * alone : in_rows;
}

Trial::Interval Trial::slowdown() const {
  const double without = of_[0].all.mean, with = of_[1].all.mean;
  const double estimate = with / without - 1;
  const double error = square_root(variance_of_mean(of_[1]) + variance_of_mean(of_[0])) / without;
  return {estimate - kSigmas * error, estimate, estimate + kSigmas * error};
}

Trial::Verdict Trial::verdict(double budget) const {
  const uint32_t count = of_[0].all.count < of_[1].all.count ? of_[0].all.count : of_[1].all.count;
  if (count < kFewest) return Verdict::kOpen;
  const Interval found = slowdown();
  if (found.high <= budget) return Verdict::kHarmless;
  if (found.low > budget) return Verdict::kTooSlow;
  if (count < kMost) return Verdict::kOpen;
  if (found.estimate <= budget) return Verdict::kHarmless;
  // Where iterations differ by themselves a guess is wrong one time in six, and each wrong one gives up something.
  return !unclear(budget) || count >= kMostOfAll ? Verdict::kTooSlow : Verdict::kOpen;
}

}  // namespace powerccl
