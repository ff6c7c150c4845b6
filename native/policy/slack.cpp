// SPDX-License-Identifier: Apache-2.0
#include "policy/slack.h"

namespace powerccl {

// When the iteration before has ended, on this one's scale.
double Slack::end_before(const Timetable& timetable) const {
  double last = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const double end = end_of(timetable.order(i));
    if (end > last) last = end;
  }
  return last - static_cast<double>(timetable.length().mean);
}

// When each kernel of an iteration ran.
void Slack::take(const Timetable& timetable, uint64_t iteration) {
  const uint64_t began_ns = timetable.start_of(iteration);
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t index = timetable.order(i);
    if (seen_ == kSettle) offset_[index] = duration_[index] = {};
    const Timetable::Run& run = timetable.run(iteration, index);
    if (began_ns == 0 || run.start_ns < began_ns || run.stop_ns < run.start_ns) continue;  // not seen
    offset_[index].add(static_cast<double>(run.start_ns - began_ns));
    duration_[index].add(static_cast<double>(run.stop_ns - run.start_ns));
  }
}

bool Slack::iteration(const Timetable& timetable, uint64_t iteration, Joint* joint, bool marked, bool too_long) {
  const uint32_t count = timetable.order_count();
  if (seen_ >= kSettle) take(timetable, iteration);
  ++seen_;
  bool known = seen_ >= kSettle + kLookAt;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = timetable.order(i);
    const Timetable::Position& position = timetable.position(index);
    if (position.duration.count < Moving::kMemory) return false;
    // Told in each iteration, since others go by it.
    const uint32_t took_us = static_cast<uint32_t>(static_cast<double>(position.duration.mean) * 1e-3);
    transfer_[index] = 1e3f * static_cast<float>(joint->least_us(position.kind, took_us));
    known = known && duration_[index].count >= kLookAt;
  }
  if (known) look(timetable, marked, too_long);
  return known;
}

// What is to spare at the present stretches becomes new ones.
void Slack::look(const Timetable& timetable, bool marked, bool too_long) {
  const uint32_t count = timetable.order_count();
  const double length = static_cast<double>(timetable.length().mean);
  double ended = end_before(timetable);
  double least = kFree, computed = 0;
  uint32_t from = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = timetable.order(i);
    // Beside a kernel that nobody waits for, computation goes on.
    const double begins = start_of(index);
    const double alone = begins > ended ? begins - ended : 0;
    computed += alone;
    computed_[index] = static_cast<float>(alone);
    if (computed > kIdle * length) {
      const double waits = static_cast<double>(duration_[index].mean - transfer_[index]),
                   off = static_cast<double>(duration_[index].deviation);
      // What it would wait for if nothing was stretched.
      const double longer = static_cast<double>(applied_[index]);
      const double in_all = waits + computed * longer / (1 + longer);
      const double margin = in_all > kClear * off ? kSmallMargin * length + 2 * off : kMargin * length + 3 * off;
      const double slack = (waits - margin) / computed;
      if (slack < least) least = slack;
    }
    const bool exposed = !marked || timetable.position(index).exposed_from.count > 0;
    if (marked && !exposed) {
      ended = begins > ended ? begins : ended;
    } else {
      ended = end_of(index);
    }
    if (!exposed && i + 1 < count) continue;
    spread(timetable, from, i, too_long && least > kGivenBack ? kGivenBack : least, too_long);
    from = i + 1;
    least = kFree;
    computed = 0;
  }
  seen_ = 0;
}

// The computation before these kernels may take so much longer, as a share of what it takes now.
void Slack::spread(const Timetable& timetable, uint32_t from, uint32_t to, double slack, bool too_long) {
  for (uint32_t i = from; i <= to; ++i) {
    float& stretch = stretch_[timetable.order(i)];
    if (slack >= kFree) {
      stretch = static_cast<float>(kFree);  // nothing to be late with
      continue;
    }
    // What is late by intent does not show by how much: then what was found before holds.
    const float applied = applied_[timetable.order(i)];
    if (slack < 0 && stretch < applied && !too_long) continue;
    const double now = 1 + static_cast<double>(slack < 0 && stretch < applied ? stretch : applied);
    const double wish = now * (1 + (slack < 0 ? slack : kGain * slack));
    stretch = static_cast<float>(wish < 1 ? 0 : wish > kMostStretch ? kMostStretch - 1 : wish - 1);
  }
}

void Slack::arrange(const Timetable& timetable, const SwitchTimes& times, bool marked) {
  const double length = static_cast<double>(timetable.length().mean);
  // Without marks nobody knows where computation waits: then what is least holds for all of it.
  double shortest = marked ? 2 * times.change_ns() : length;
  if (shortest < 0.02 * length) shortest = 0.02 * length;
  const double calls = kBusyShare * length / (times.call_ns() > 0 ? times.call_ns() : 1);
  count_ = 0;
  double began = end_before(timetable);
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t index = timetable.order(i);
    const double until = end_of(index), stretch = 1 + static_cast<double>(stretch_[index]);
    // It may end a little sooner, too; but before its kernel there is computation that may take longer.
    const double duration = static_cast<double>(duration_[index].mean);
    double early = static_cast<double>(transfer_[index] + duration_[index].deviation);
    if (early > duration) early = duration;
    Stage* last = count_ > 0 ? &stages_[count_ - 1] : nullptr;
    if (last != nullptr) {
      const double off = stretch / last->stretch - 1;
      const bool alike = (off < 0 ? -off : off) < kAlike;
      const bool free = stretch >= kFree || last->stretch >= kFree;
      if (free || alike || last->until - began < shortest || count_ == kMost || count_ + 1 > calls) {
        if (stretch < last->stretch) last->stretch = stretch;
        if (until > last->until) {
          last->until = until;
          last->early = early;
        }
        continue;
      }
      began = last->until;
    }
    stages_[count_++] = {until, stretch, early, i};
  }
  if (count_ > 1 && stages_[count_ - 1].until - stages_[count_ - 2].until < shortest) {
    Stage& before = stages_[count_ - 2];
    before.until = stages_[count_ - 1].until;
    before.early = stages_[count_ - 1].early;
    if (stages_[count_ - 1].stretch < before.stretch) before.stretch = stages_[count_ - 1].stretch;
    --count_;
  }
  any_ = false;
  for (uint32_t i = 0; i < count_; ++i) {
    Stage& stage = stages_[i];
    const uint32_t to = i + 1 < count_ ? stages_[i + 1].from : timetable.order_count();
    if (marked && count_ == 1 && stage.stretch < kFree) stage.stretch = in_common(timetable, stage.stretch);
    if (stage.stretch >= kFree || stage.stretch < kLeast) stage.stretch = 1;
    any_ = any_ || stage.stretch > 1;
    for (uint32_t k = stage.from; k < to; ++k) applied_[timetable.order(k)] = static_cast<float>(stage.stretch - 1);
  }
}

// For an iteration that must have one clock, because changes take too long: more than the least of its stretches may be
// worth being late by a little, which the job's clock makes up for at a price that all GPUs share.
double Slack::in_common(const Timetable& timetable, double least) const {
  double low = least, high = kMostStretch, in_all = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) in_all += static_cast<double>(computed_[timetable.order(i)]);
  for (int halved = 0; halved < 12; ++halved) {
    const double middle = 0.5 * (low + high);
    double late = 0, share = 0, most = 1;
    for (uint32_t i = 0; i < timetable.order_count(); ++i) {
      const uint32_t index = timetable.order(i);
      const double may = 1 + static_cast<double>(stretch_[index]);
      if (may > most && may < kFree) most = may;
      const double takes = static_cast<double>(computed_[index]) / (1 + static_cast<double>(applied_[index]));
      if (may >= middle) continue;
      late += takes * (middle - may);
      share += takes;
    }
    (late <= kLate * in_all && share <= kLateShare * in_all && middle <= most ? low : high) = middle;
  }
  return low;
}

double Slack::at(double moment_ns, double length_ns, const SwitchTimes& times, double* until_ns) const {
  if (count_ == 0) return 1;
  // In the first stage again once the last is over.
  uint32_t stage = 0;
  double shift = 0;
  while (stage < count_ && moment_ns >= stages_[stage].until) ++stage;
  if (stage == count_) {
    stage = 0;
    shift = length_ns;
  }
  for (uint32_t passed = 0; passed < count_; ++passed) {
    const uint32_t next = stage + 1 < count_ ? stage + 1 : 0;
    const bool rises = stages_[next].stretch < stages_[stage].stretch;
    const double change = rises ? times.slow_change_ns() + times.sooner_ns : times.quickest_ns() - times.later_ns;
    const double due = stages_[stage].until + shift - change - (rises ? stages_[stage].early : 0);
    if (moment_ns < due) {
      *until_ns = due;
      break;
    }
    if (next == 0) shift += length_ns;
    stage = next;
  }
  return stages_[stage].stretch;
}

}  // namespace powerccl
