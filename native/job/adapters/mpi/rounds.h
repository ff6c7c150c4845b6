// SPDX-License-Identifier: Apache-2.0
// Whether something moved between two visits of the library's idle loop, inferred from what else happened in between.
#pragma once
#include <stdint.h>

#include "adapters/mpi/waiter.h"

namespace powerccl::mpi {

// Three signs, any of them is enough.
//
// Rounds: the library calls a function of this adapter once a round, and only idle rounds reach the idle loop. In Open
// MPI it is a progress function. In MPICH 4.3 and later over UCX it is ucp_worker_progress. More than one round between
// two visits means that the others had work.
//
// Places: MPICH yields in its progress function when one or more rounds moved nothing. In its default build, it also
// yields in the loop around it after every round. While nothing moves these two take turns. The same place twice means
// that the first was left out, because its count began again.
//
// Times: Intel MPI adds up how long its loop is idle, after every visit but the first of a loop. The loop ends when any
// request completes. It begins again if another request is waited for. Two visits without such a time in between mean
// that the loop has just begun again.
class Rounds {
 public:
  void begin() {
    rounds_ = 0;
    last_place_ = nullptr;
    take_turns_ = false;
    repeats_ = 0;
    times_ = 0;
  }
  void round(uint32_t count) {
    rounds_ += count;
    counted_ = true;
  }
  // Something moved. Not everything that moves is reported by this call.
  void moved() { rounds_ = 2; }
  void time() {
    ++times_;
    counted_ = timed_ = true;
  }
  // At a visit from `place` in the library; null: where is not known.
  Moved visit(const void* place) {
    const uint32_t rounds = rounds_;
    rounds_ = 0;
    bool something = rounds > 1 || (timed_ && times_ == 0);
    times_ = 0;
    if (place != last_place_) {
      take_turns_ = last_place_ != nullptr;
      last_place_ = place;
      repeats_ = 0;
    } else if (take_turns_) {
      something = true;
      // Another loop of the library, with one place only, has begun.
      if (++repeats_ >= kOtherLoop) take_turns_ = false;
    }
    if (something) return Moved::kSomething;
    return counted_ || take_turns_ ? Moved::kNothing : Moved::kUnknown;
  }

 private:
  static constexpr uint32_t kOtherLoop = 2000;  // well over what users set MPICH's count to

  uint32_t rounds_ = 0, repeats_ = 0, times_ = 0;
  const void* last_place_ = nullptr;
  bool counted_ = false;  // rounds or times are reported in this thread
  bool timed_ = false;
  bool take_turns_ = false;
};

}  // namespace powerccl::mpi
