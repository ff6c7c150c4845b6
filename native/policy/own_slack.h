// SPDX-License-Identifier: Apache-2.0
// How much longer a GPU may compute because it waits for others anyway: a rank with less to do than the rest.
//
// What computation before a collective takes longer is made up for by waiting less in it. Nobody else notices as long
// as this GPU does not come last. So it goes by what it waited at least in a number of iterations.
#ifndef POWERCCL_POLICY_OWN_SLACK_H
#define POWERCCL_POLICY_OWN_SLACK_H
#include <stdint.h>

#include "policy/joint.h"
#include "policy/timetable.h"

namespace powerccl {

// Not for several threads at once; nothing is allocated.
class OwnSlack {
 public:
  void clear() { *this = OwnSlack(); }
  // Computation takes so much longer, as a fraction: at a clock so much lower, or less so where it follows less.
  double stretch() const { return stretch_; }
  // Another iteration at the present stretch. `joint`: how long each kind of kernel takes whoever comes last to it.
  void iteration(const Timetable& timetable, uint64_t iteration, Joint* joint);
  // What comes now is another clock's.
  void look_anew() { seen_ = 0; }
  // Takes up three quarters of what is to spare, or gives back what is not, once enough was seen.
  void adjust(const Timetable& timetable);
  // Half of it was too much, whatever was seen.
  void give_back() { stretch_ /= 2; }

 private:
  static constexpr uint32_t kFewest = 8;    // iterations
  static constexpr double kGain = 0.75;     // of what is found, taken up at once
  static constexpr double kMargin = 0.001;  // of an iteration, that it goes on to wait
  static constexpr double kIdle = 0.005;    // of an iteration: computation shorter than that has no say
  static constexpr double kMost = 1;

  float waited_[Timetable::kLongest] = {};    // at least, by position, ns
  float computed_[Timetable::kLongest] = {};  // before it, in all, ns
  float beside_[Timetable::kLongest] = {};    // from its start to its end, in all, ns
  uint32_t seen_ = 0;
  double stretch_ = 0;
};

}  // namespace powerccl
#endif
