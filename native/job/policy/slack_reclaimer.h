// SPDX-License-Identifier: Apache-2.0
// Slack reclamation: a rank that waits for others in its collectives computes at a lower clock instead.
//
// Computation that takes longer shortens the wait behind it. No other rank notices while this one does not arrive last.
// So the clock follows from how long it waits at least, as far as some iterations tell.
#pragma once
#include <stdint.h>

#include "policy/iteration_profile.h"
#include "policy/node_state.h"

namespace powerccl {

// Not thread-safe. Allocates nothing.
class SlackReclaimer {
 public:
  void clear() { *this = SlackReclaimer(); }
  // Fraction by which computation may take longer.
  double stretch() const { return stretch_; }
  // One more iteration at the present stretch. `node` knows how long each kind of kernel takes the rank that arrives
  // last, which waits for no other.
  void iteration(const IterationProfile& profile, uint64_t iteration, NodeState* node);
  // Forgets the iterations so far: the clock has changed.
  void restart() { count_ = 0; }
  // Adapts the stretch to the waits of at least kFewest iterations.
  void adjust(const IterationProfile& profile);
  // The job takes too long, whatever the waits say. The stretch stays so low until restore().
  void halve() { stretch_ = most_ = stretch_ / 2; }
  // The job keeps its budget.
  void restore() { most_ = 2 * most_ < kMost ? 2 * most_ : kMost; }

 private:
  // Iterations that are enough to tell how much waits differ.
  static constexpr uint32_t kFewest = 8;
  // Part of the slack that is reclaimed at a time: the rest follows in the next steps, and noise does not overshoot.
  static constexpr double kGain = 0.75;
  // Part of an iteration that a rank goes on to wait in each collective.
  static constexpr double kMargin = 0.001;
  // Part of an iteration: shorter computation cannot make a collective late.
  static constexpr double kIdle = 0.005;
  // Largest stretch: to a quarter of the clock (LearningPolicy::kLowestOfAll).
  static constexpr double kMost = 3;

  // Standard deviations that are left of the wait: with uneven load, a rank arrives last now and then.
  static constexpr double kDeviations = 3;

  double least_wait(uint32_t position) const;

  // By position of the collective, ns: its wait in the first iteration; how much longer later waits were, and the
  // squares of that. Then computation before it and its own duration. All but the first are sums.
  float first_wait_[IterationProfile::kLongest] = {};
  float longer_wait_[IterationProfile::kLongest] = {};
  float squares_[IterationProfile::kLongest] = {};
  float computing_[IterationProfile::kLongest] = {};
  float communicating_[IterationProfile::kLongest] = {};
  uint32_t count_ = 0;
  double stretch_ = 0, most_ = kMost;
};

}  // namespace powerccl
