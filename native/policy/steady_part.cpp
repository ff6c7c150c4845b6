// SPDX-License-Identifier: Apache-2.0
#include "policy/steady_part.h"

namespace powerccl {

void SteadyPart::learn(const Timetable& timetable, uint64_t iteration) {
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const double ns = timetable.pause_ns(iteration, i);
    if (ns < 0) continue;
    Pause& pause = pauses_[timetable.order(i)];
    ++pause.count;
    const double off = ns - static_cast<double>(pause.mean);
    const double mean = static_cast<double>(pause.mean) + off / pause.count;
    pause.mean = static_cast<float>(mean);
    pause.squares += static_cast<float>(off * (ns - mean));
  }
}

void SteadyPart::choose(const Timetable& timetable) {
  double all = 0, steady = 0;
  chosen_ = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    Pause& pause = pauses_[timetable.order(i)];
    pause.chosen = false;
    if (pause.count < kFewest) continue;
    const double mean = static_cast<double>(pause.mean);
    const double variance = static_cast<double>(pause.squares) / (pause.count - 1);
    all += mean;
    if (mean < kLeastNs || variance > kSteady * kSteady * mean * mean) continue;
    pause.chosen = true;
    steady += mean;
    ++chosen_;
  }
  const double length = static_cast<double>(timetable.length().mean);
  if (length <= 0 || steady < kLeastShare * length) chosen_ = 0;
  weight_ = length > 0 ? all / length : 0;
}

double SteadyPart::of(const Timetable& timetable, uint64_t iteration) const {
  double sum = 0;
  uint32_t seen = 0;
  for (uint32_t i = 0; chosen_ > 0 && i < timetable.order_count(); ++i) {
    if (!pauses_[timetable.order(i)].chosen) continue;
    const double ns = timetable.pause_ns(iteration, i);
    if (ns < 0) return 0;
    sum += ns;
    ++seen;
  }
  return seen == chosen_ ? sum : 0;
}

}  // namespace powerccl
