// SPDX-License-Identifier: Apache-2.0
#include "policy/iteration_detector.h"

namespace powerccl {

uint64_t IterationDetector::called(uint32_t kind) {
  const uint64_t number = ++calls_;
  ring_[number % kRing] = kind;
  if (period_ != 0 && ring_[(number - period_) % kRing] != kind) {
    period_ = 0;
    broken_ = number;
  }
  // A look takes a microsecond or more: the longer no period is found, the less often it looks.
  if (period_ == 0 && number % (1 + (number - broken_) / 64) == 0) look();
  return number;
}

// Of all periods that have held for two iterations the one that has held longest. A run of equal calls inside an
// iteration looks like a period of its own, but not for as long as the iteration's.
void IterationDetector::look() {
  uint64_t most = kFewest - 1;
  for (uint32_t period = 1; period <= kLongest && 3 * uint64_t{period} <= calls_; ++period) {
    const uint64_t kept = (calls_ < kRing ? calls_ : kRing) - period;
    uint64_t matched = 0;
    while (matched < kept && ring_[(calls_ - matched) % kRing] == ring_[(calls_ - matched - period) % kRing]) ++matched;
    const uint64_t needed = 2 * uint64_t{period} < kept ? 2 * uint64_t{period} : kept;
    if (matched >= needed && matched > most) {
      most = matched;
      period_ = period;
      since_ = calls_;
    }
  }
}

}  // namespace powerccl
