// SPDX-License-Identifier: Apache-2.0
#include "policy/slack_reclaimer.h"

#include "policy/square_root.h"

namespace powerccl {

void SlackReclaimer::iteration(const IterationProfile& profile, uint64_t iteration, NodeState* node) {
  const uint32_t count = profile.order_count();
  if (iteration == 0 || count == 0) return;
  uint64_t ended_ns = profile.run(iteration - 1, profile.order(count - 1)).stop_ns;
  for (uint32_t i = 0; i < count; ++i) {  // an iteration counts only as a whole
    const IterationProfile::Run& run = profile.run(iteration, profile.order(i));
    if (run.start_ns == 0 || run.stop_ns < run.start_ns) return;
  }
  if (ended_ns == 0) return;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = profile.order(i);
    const IterationProfile::Run& run = profile.run(iteration, index);
    const auto took = static_cast<double>(run.stop_ns - run.start_ns);
    const uint32_t mean_us = static_cast<uint32_t>(static_cast<double>(profile.position(index).duration.mean) * 1e-3);
    const double alone = 1e3 * node->least_us(profile.position(index).kind, mean_us);
    const auto waited = static_cast<float>(took - alone);
    const auto computed = run.start_ns > ended_ns ? static_cast<float>(run.start_ns - ended_ns) : 0;
    if (count_ == 0) {
      first_wait_[index] = waited;
      longer_wait_[index] = squares_[index] = computing_[index] = communicating_[index] = 0;
    }
    const float longer = waited - first_wait_[index];
    longer_wait_[index] += longer;
    squares_[index] += longer * longer;
    computing_[index] += computed;
    communicating_[index] += static_cast<float>(took);
    if (run.stop_ns > ended_ns) ended_ns = run.stop_ns;
  }
  ++count_;
}

double SlackReclaimer::least_wait(uint32_t position) const {
  const double longer = static_cast<double>(longer_wait_[position]) / count_;
  const double variance = static_cast<double>(squares_[position]) / count_ - longer * longer;
  const double deviation = variance > 0 ? square_root(variance) : 0;
  return static_cast<double>(first_wait_[position]) + longer - kDeviations * deviation;
}

void SlackReclaimer::adjust(const IterationProfile& profile) {
  if (count_ < kFewest) return;
  const double length = static_cast<double>(profile.length().mean);
  bool marked = false;
  for (uint32_t i = 0; i < profile.order_count(); ++i) {
    marked = marked || profile.position(profile.order(i)).exposed_from.count > 0;
  }
  double room = kMost, computed = 0;
  for (uint32_t i = 0; i < profile.order_count(); ++i) {
    const uint32_t index = profile.order(i);
    computed += static_cast<double>(computing_[index]) / count_;
    if (computed > kIdle * length) {
      const double free = (least_wait(index) - kMargin * length) / computed;
      if (free < room) room = free;
    }
    // Computation goes on beside a hidden collective, and reaches the next one late as well.
    const bool exposed = !marked || profile.position(index).exposed_from.count > 0;
    computed = exposed ? 0 : computed + static_cast<double>(communicating_[index]) / count_;
  }
  stretch_ = (1 + stretch_) * (1 + (room > 0 ? kGain * room : room)) - 1;
  if (stretch_ < 0) stretch_ = 0;
  if (stretch_ > most_) stretch_ = most_;
  count_ = 0;
}

}  // namespace powerccl
