// SPDX-License-Identifier: Apache-2.0
// What repeats in the calls of one GPU: how many calls an iteration of the job has.
#pragma once
#include <stdint.h>

namespace powerccl {

// Not thread-safe. Allocates nothing.
class IterationDetector {
 public:
  static constexpr uint32_t kLongest = 2048;  // calls of an iteration
  static constexpr uint32_t kFewest = 8;      // that must have repeated, however short the iteration is

  // A call was made; `kind` is the same for calls that do the same (communicator, pattern, size). Returns its number,
  // from 1.
  uint64_t called(uint32_t kind);

  uint64_t calls() const { return calls_; }
  // The kind of one of the last 2 * kLongest calls.
  uint32_t kind(uint64_t call) const { return ring_[call % kRing]; }

  // Calls of an iteration; 0: not known. Where all calls are of one kind this is 1, whatever the job calls an
  // iteration: the profile looks at times as well.
  uint32_t period() const { return period_; }
  // The call from which on the same period has held; calls of the two periods before it repeated already.
  uint64_t since() const { return since_; }

 private:
  static constexpr uint32_t kRing = 2 * kLongest;

  void look();

  uint32_t ring_[kRing] = {};
  uint64_t calls_ = 0;
  uint32_t period_ = 0;
  uint64_t since_ = 0;
  uint64_t broken_ = 0;  // the call that did not fit
};

}  // namespace powerccl
