// SPDX-License-Identifier: Apache-2.0
// How much more slowly a GPU may compute because it waits for others anyway, by stretches of its iteration: a rank with
// less to do than the rest, or the first and last stages of a pipeline, whose neighbours have one transfer more.
//
// What computation before a kernel takes longer is made up for by waiting less in it, and nobody else notices, as long
// as this GPU does not come last. Where computation goes on beside a kernel what it is late by reaches the next one,
// too.
#ifndef POWERCCL_POLICY_SLACK_H
#define POWERCCL_POLICY_SLACK_H
#include <stdint.h>

#include "policy/joint.h"
#include "policy/timetable.h"
#include "policy/windows.h"

namespace powerccl {

// Not for several threads at once; nothing is allocated.
class Slack {
 public:
  static constexpr uint32_t kMost = 64;  // stages of an iteration

  void clear() { *this = Slack(); }
  // Whether computation takes longer anywhere by so much that a clock can follow.
  bool any() const { return any_; }
  uint32_t stages() const { return count_; }
  // How much longer computation may take, as a factor, at a moment of the iteration in ns from the start of its first
  // kernel; `until_ns`: the moment from which on that is to be asked again. The change of clock it takes is asked for
  // ahead: it is there when computation begins that may not be late.
  double at(double moment_ns, double length_ns, const SwitchTimes& times, double* until_ns) const;

  // Another iteration at the present stretches, which the timetable has learnt. How long each kind of kernel takes
  // without waiting is in the joint page: what the rank that comes last sees. `too_long`: iterations take too long, so
  // slack is given back. True: stretches have changed.
  bool iteration(const Timetable& timetable, uint64_t iteration, Joint* joint, bool marked, bool too_long);
  // Makes stages of the stretches, none shorter than is worth a change of clock.
  void arrange(const Timetable& timetable, const SwitchTimes& times, bool marked);
  // The iterations so far were at other clocks.
  void look_anew() { seen_ = 0; }
  // One in which nothing is managed.
  void left_alone() { seen_ = 0; }

 private:
  static constexpr uint32_t kSettle = 2, kLookAt = Moving::kMemory;  // iterations at new stretches
  static constexpr double kGain = 0.75;                              // of what is found, taken up at once
  // Of an iteration, that is left; and where it waits for so many deviations of that, which is no chance.
  static constexpr double kMargin = 0.002, kSmallMargin = 0.0005, kClear = 6;
  static constexpr double kLeast = 1.02;  // computation longer by less is not worth a change
  static constexpr double kMostStretch = 2, kGivenBack = -0.2;
  static constexpr double kIdle = 0.005;  // of an iteration: computation shorter than that has no say
  static constexpr double kAlike = 0.05;  // stretches that need no change of clock between them
  static constexpr double kBusyShare = 0.25;
  // Of an iteration's computation, that may be late and by how much, where one clock is worth that to the rest.
  static constexpr double kLateShare = 0.22, kLate = 0.015;

  struct Stage {
    double until = 0;  // it begins where the one before ends, the first where the last ends
    double stretch = 0;
    double early = 0;   // a higher clock behind it is to be there so long before
    uint32_t from = 0;  // its first kernel's place in the order
  };
  static constexpr double kFree = 1e9;

  void take(const Timetable& timetable, uint64_t iteration);
  void look(const Timetable& timetable, bool marked, bool too_long);
  double start_of(uint32_t position) const { return static_cast<double>(offset_[position].mean); }
  double end_of(uint32_t position) const {
    return static_cast<double>(offset_[position].mean + duration_[position].mean);
  }
  double end_before(const Timetable& timetable) const;
  void spread(const Timetable& timetable, uint32_t from, uint32_t to, double slack, bool too_long);
  double in_common(const Timetable& timetable, double least) const;

  // Of the computation before a position, less 1: what it may have, and what it has.
  float stretch_[Timetable::kLongest] = {}, applied_[Timetable::kLongest] = {};
  float computed_[Timetable::kLongest] = {};  // before a position and beside no communication that is waited for, ns
  // How long its kernel takes without waiting, ns: that is no slower for what comes before.
  float transfer_[Timetable::kLongest] = {};
  // Of the iterations at the present stretches alone: the timetable remembers others for a while, and what changed then
  // counts as what differs from one iteration to the next.
  Moving offset_[Timetable::kLongest], duration_[Timetable::kLongest];
  Stage stages_[kMost];
  uint32_t count_ = 0;
  uint32_t seen_ = 0;
  bool any_ = false;
};

}  // namespace powerccl
#endif
