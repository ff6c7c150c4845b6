// SPDX-License-Identifier: Apache-2.0
// The part of an iteration that takes the same time in each: between calls that nothing draws lots for. Where
// iterations differ by themselves (a mixture of experts, sequences of any length) it tells within seconds what a clock
// costs computation, and their length would within minutes.
#ifndef POWERCCL_POLICY_STEADY_PART_H
#define POWERCCL_POLICY_STEADY_PART_H
#include <stdint.h>

#include "policy/timetable.h"

namespace powerccl {

// Not for several threads at once; nothing is allocated.
class SteadyPart {
 public:
  // An iteration in which nothing is managed. Not after choose().
  void learn(const Timetable& timetable, uint64_t iteration);
  // Which pauses between kernels count from now on, by what was learnt. None, where too little of the job is steady.
  void choose(const Timetable& timetable);

  // How long they took in an iteration, in ns; 0: there are none, or not all were seen.
  double of(const Timetable& timetable, uint64_t iteration) const;
  // The share of an iteration that is pauses, steady or not: a steady part that takes 1 % longer makes iterations
  // longer by that share of 1 %.
  double weight() const { return weight_; }

 private:
  static constexpr uint32_t kFewest = 8;      // iterations
  static constexpr double kLeastNs = 200000;  // of a pause
  static constexpr double kSteady = 0.08;     // of its mean, that a pause may deviate by
  static constexpr double kLeastShare = 0.1;  // of an iteration
  struct Pause {
    uint32_t count = 0;
    float mean = 0, squares = 0;  // Welford's sums
    bool chosen = false;
  };

  Pause pauses_[Timetable::kLongest];  // by position, behind its kernel
  uint32_t chosen_ = 0;
  double weight_ = 0;
};

}  // namespace powerccl
#endif
