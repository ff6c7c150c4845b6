// SPDX-License-Identifier: Apache-2.0
// Times on emulated GPUs must not depend on the host. Model time waits while ranks enqueue, and all they enqueue counts
// as enqueued at one moment. Collectives whose results are not checked move no data. On real GPUs these classes do
// nothing.
#pragma once
#include <cstdint>

#include "bench/rank.h"

namespace powerccl::bench {

// While it lives, collectives of the calling thread take their time and move nothing.
class WithoutData {
 public:
  explicit WithoutData(const CudaApi& cuda);
  ~WithoutData();
  WithoutData(const WithoutData&) = delete;
  WithoutData& operator=(const WithoutData&) = delete;

 private:
  const CudaApi& cuda_;
};

class EmulatedTime {
 public:
  explicit EmulatedTime(Rank& rank);
  ~EmulatedTime();
  EmulatedTime(const EmulatedTime&) = delete;
  EmulatedTime& operator=(const EmulatedTime&) = delete;

  bool emulated() const { return rank_.cuda().emulated(); }
  // All ranks must call it; returns the moment (CLOCK_MONOTONIC ns) at which everything counts as enqueued until go().
  // On real GPUs, and under `powerccl run`: now. A recorded run takes real time, since the recorder relates GPU times
  // to the host's by how soon it sees what a GPU did.
  uint64_t stop();
  void go();
  // What this rank's emulated GPU used between two events that are behind it.
  double joules_between(CUevent from, CUevent to) const;
  // Whether model time has waited each time on this rank. If not, the host was too slow: times are not the platform's.
  bool kept_up() const { return kept_up_; }

 private:
  Rank& rank_;
  bool stops_;
  uint64_t stop_ = 0;  // the emulator's number; 0: time goes on
  bool kept_up_ = true;
};

}  // namespace powerccl::bench
