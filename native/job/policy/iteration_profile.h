// SPDX-License-Identifier: Apache-2.0
// When, in an iteration of the job, each of its communication kernels runs on one GPU: learnt from the calls' period
// and the kernels' times.
//
// Not thread-safe. Allocates nothing. All times are CLOCK_MONOTONIC in ns.
#pragma once
#include <stdint.h>

#include "policy/iteration_detector.h"
#include "policy/node_state.h"

namespace powerccl {

// A mean that follows.
struct Moving {
  float mean = 0;
  uint32_t count = 0;

  void add(double value) {
    if (count < kMemory) ++count;
    mean = static_cast<float>(static_cast<double>(mean) + (value - static_cast<double>(mean)) / count);
  }
  // Iterations that a mean remembers: a change of the job shows in a second.
  static constexpr uint32_t kMemory = 8;
};

class IterationProfile {
 public:
  static constexpr uint32_t kLongest = IterationDetector::kLongest;

  // One call of an iteration. Offsets are from the start of the iteration's first kernel.
  struct Position {
    uint32_t kind = 0;
    bool timed = false;  // it has a kernel that is seen to start
    Moving offset;       // of its start, in the iterations learnt last
    Moving duration;
    Moving exposed_from;  // from its start to when computation waits for it, as far as the adapter's marks tell
  };

  // What one call did when it ran; 0: not seen.
  struct Run {
    uint64_t call = 0, sequence = 0;
    uint64_t start_ns = 0, stop_ns = 0;
    uint64_t stall_ns = 0;
  };

  // `node`: shared by the ranks that are to find the same iteration; null: this rank alone.
  void begin_with(NodeState* node) { node_ = node; }

  // A call was made, or has begun or ended to run, or was waited for by computation. False: the call is not known.
  // Returns its number among all calls.
  uint64_t called(uint64_t call, uint32_t kind);
  bool started(uint64_t call, uint64_t start_ns);
  bool stopped(uint64_t call, uint64_t stop_ns);
  bool waited(uint64_t call, uint64_t stall_ns);

  // Looks for the iteration while it is not known. To be called now and then, when kernels have run. True: it is known.
  bool settle();
  bool settled() const { return period_ != 0 && detector_.period() != 0 && detector_.since() == since_; }
  uint32_t period() const { return period_; }
  // Counts up with each newly detected iteration; what was learnt of the one before is gone.
  uint64_t generation() const { return generation_; }

  // Iterations are counted from when they were first known. The first one is complete when its successor has begun.
  bool complete(uint64_t iteration) const { return start_of(iteration + 1) != 0; }
  uint64_t iteration_of(uint64_t sequence) const { return (sequence - origin_) / period_; }
  uint32_t position_of(uint64_t sequence) const { return static_cast<uint32_t>((sequence - origin_) % period_); }
  // How many iterations of calls came before the first one. With it, all ranks that make the same calls count alike,
  // whenever each of them detected the iteration.
  uint64_t before() const { return origin_ / period_; }
  bool belongs(uint64_t sequence) const { return period_ != 0 && sequence >= origin_; }
  // When its first kernel began; 0: not yet, or no longer known.
  uint64_t start_of(uint64_t iteration) const { return run(iteration, 0).start_ns; }
  const Run& run(uint64_t iteration, uint32_t position) const;

  // Takes a complete iteration into account.
  void learn(uint64_t iteration);
  const Position& position(uint32_t index) const { return positions_[index]; }
  const Moving& length() const { return length_; }
  // Positions that are timed, by their offset.
  uint32_t order_count() const { return order_count_; }
  uint32_t order(uint32_t index) const { return order_[index]; }

  // The kernel that began last: the next one's time is measured from it.
  const Run* latest() const { return latest_ != 0 ? &runs_[latest_ % kRuns] : nullptr; }

 private:
  static constexpr uint32_t kRuns = 2 * kLongest;
  // Periods of the calls that an iteration has at most: of 64 equal buckets.
  static constexpr uint32_t kMostMultiple = 64;
  // Calls: fewer say nothing about times.
  static constexpr uint32_t kFewest = 16;
  // Share by which intervals may differ from iteration to iteration: hosts vary by some percent.
  static constexpr double kRegular = 0.1;
  // Times as irregular as the best: a shorter period counts as well.
  static constexpr double kAsRegular = 3;
  // Less irregular than this is no better.
  static constexpr double kExact = 0.002;
  // Calls of a period: as many as that are seldom equal buckets, and tell the iteration by themselves.
  static constexpr uint32_t kFewKinds = 8;
  // Time in which a period is seen to repeat, ns: no burst of equal calls inside an iteration takes so long.
  static constexpr double kLongNs = 5e9;

  Run* find(uint64_t call);
  uint32_t agreed(uint32_t base, uint32_t period) { return node_ ? node_->agree_on(base, period) : period; }
  double irregularity(uint64_t from, uint64_t to, uint32_t lag) const;
  uint64_t first_of(uint32_t base) const;
  uint32_t regular(uint32_t base, double* least, uint32_t* most) const;
  uint32_t shortest(uint32_t base, double least, uint32_t most) const;
  void reconsider(uint32_t base);
  uint32_t timed(uint64_t sequence) const;
  bool begins_unseen() const;
  void begin(uint32_t period, uint64_t last);
  void sort();

  NodeState* node_ = nullptr;
  IterationDetector detector_;
  uint32_t tried_ = 0;                // multiples of the calls' period that there was enough for
  Run runs_[kRuns] = {};              // by sequence
  uint64_t sequence_of_[kRuns] = {};  // by call
  uint64_t since_ = 0, origin_ = 0, latest_ = 0;
  uint32_t period_ = 0;
  uint64_t generation_ = 0, look_again_ = 0;
  uint64_t looked_at_ = 0;  // calls when settle() looked last
  Position positions_[kLongest];
  uint32_t order_[kLongest] = {};
  uint32_t order_count_ = 0;
  Moving length_;
  Run no_run_;
};

}  // namespace powerccl
