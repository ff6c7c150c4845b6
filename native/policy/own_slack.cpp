// SPDX-License-Identifier: Apache-2.0
#include "policy/own_slack.h"

namespace powerccl {

void OwnSlack::iteration(const Timetable& timetable, uint64_t iteration, Joint* joint) {
  const uint32_t count = timetable.order_count();
  if (iteration == 0 || count == 0) return;
  uint64_t ended_ns = timetable.run(iteration - 1, timetable.order(count - 1)).stop_ns;
  for (uint32_t i = 0; i < count; ++i) {  // all of it, or none
    const Timetable::Run& run = timetable.run(iteration, timetable.order(i));
    if (run.start_ns == 0 || run.stop_ns < run.start_ns) return;
  }
  if (ended_ns == 0) return;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = timetable.order(i);
    const Timetable::Run& run = timetable.run(iteration, index);
    const auto took = static_cast<double>(run.stop_ns - run.start_ns);
    const uint32_t mean_us = static_cast<uint32_t>(static_cast<double>(timetable.position(index).duration.mean) * 1e-3);
    const double alone = 1e3 * joint->least_us(timetable.position(index).kind, mean_us);
    const auto waited = static_cast<float>(took - alone);
    const auto computed = run.start_ns > ended_ns ? static_cast<float>(run.start_ns - ended_ns) : 0;
    if (seen_ == 0) {
      waited_[index] = waited;
      computed_[index] = computed;
      beside_[index] = static_cast<float>(took);
    } else {
      if (waited < waited_[index]) waited_[index] = waited;
      computed_[index] += computed;
      beside_[index] += static_cast<float>(took);
    }
    if (run.stop_ns > ended_ns) ended_ns = run.stop_ns;
  }
  ++seen_;
}

void OwnSlack::adjust(const Timetable& timetable) {
  if (seen_ < kFewest) return;
  const double length = static_cast<double>(timetable.length().mean);
  bool marked = false;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    marked = marked || timetable.position(timetable.order(i)).exposed_from.count > 0;
  }
  double room = kMost, computed = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t index = timetable.order(i);
    computed += static_cast<double>(computed_[index]) / seen_;
    if (computed > kIdle * length) {
      const double free = (static_cast<double>(waited_[index]) - kMargin * length) / computed;
      if (free < room) room = free;
    }
    // Beside a kernel that nobody waits for computation goes on, and is late for the next one, too.
    const bool exposed = !marked || timetable.position(index).exposed_from.count > 0;
    computed = exposed ? 0 : computed + static_cast<double>(beside_[index]) / seen_;
  }
  stretch_ = (1 + stretch_) * (1 + (room > 0 ? kGain * room : room)) - 1;
  if (stretch_ < 0) stretch_ = 0;
  if (stretch_ > kMost) stretch_ = kMost;
  seen_ = 0;
}

}  // namespace powerccl
