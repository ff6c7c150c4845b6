// SPDX-License-Identifier: Apache-2.0
#include "runtime/trial.h"

#include "runtime/basics.h"

namespace powerccl {
void Trial::iteration(bool managed, uint64_t duration_ns) {
  Kind& kind = of_[managed ? 1 : 0];
  const double duration = static_cast<double>(duration_ns);
  // What stays that long is no outlier.
  if (kind.count >= kFewest && duration > kOutlier * kind.mean && kind.left_out < kFewest) {
    ++kind.left_out;
    return;
  }
  if (kind.left_out >= kFewest) kind = Kind();
  kind.left_out = 0;
  ++kind.count;
  const double off = duration - kind.mean;
  kind.mean += off / kind.count;
  kind.squares += off * (duration - kind.mean);
}

double Trial::variance_of_mean(const Kind& kind) {
  return kind.squares / (kind.count - 1) / kind.count;
}

Trial::Interval Trial::slowdown() const {
  const Kind &without = of_[0], &with = of_[1];
  const double estimate = with.mean / without.mean - 1;
  const double error = square_root(variance_of_mean(with) + variance_of_mean(without)) / without.mean;
  return {estimate - kSigmas * error, estimate, estimate + kSigmas * error};
}

Trial::Verdict Trial::verdict(double budget) const {
  const uint32_t count = of_[0].count < of_[1].count ? of_[0].count : of_[1].count;
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
