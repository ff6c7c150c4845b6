// SPDX-License-Identifier: Apache-2.0
// One clock for the whole job, that needs no profile and no word from another rank.
//
// Stretches of iterations at a lower clock alternate with shorter ones at the default, which tell how much longer
// iterations take for it. Time follows the clock no more than fully, so default / (1 + budget) is safe before anything
// is known; from there it goes down as far as is surely harmless. Stretches are agreed on by counting: all ranks of a
// job pass the same iterations. Only their inside is judged, since a rank may count one off.
#ifndef POWERCCL_POLICY_ELASTIC_H
#define POWERCCL_POLICY_ELASTIC_H
#include <stdint.h>

#include "libc/spin_lock.h"
#include "policy/clock_policy.h"
#include "policy/mean.h"
#include "policy/timetable.h"

namespace powerccl {

class Elastic final : public ClockPolicy {
 public:
  struct Terms {
    double budget = 0.01;  // slowdown that may be, as a fraction
    bool dry = false;      // nothing is changed, so nothing can be learnt: it stays at the clock that is safe
  };
  void begin(const Terms& terms);

  void called(uint64_t call, uint32_t kind, uint32_t mhz) override;
  void graph_called(uint64_t call, uint32_t kind) override;
  bool started(uint64_t call, uint64_t start_ns) override;
  bool stopped(uint64_t call, uint64_t stop_ns) override;
  void rest() override;
  Wanted wanted(uint64_t now_ns) override;
  bool wants_sample() const override { return wants_sample_; }
  void sampled(uint32_t mhz) override;
  State state() override;

 private:
  // Iterations of a reference stretch: so much time of them, and a power of two, that all ranks find the same one.
  static constexpr double kReferenceNs = 2e9;
  static constexpr uint32_t kFewest = 8, kMost = 512, kFirst = 8;
  // Ranks see iterations begin some milliseconds apart: of so much time all find the same length.
  static constexpr double kFirstNs = 1e9;
  static constexpr uint32_t kStretches = 6;         // of as many iterations one is a reference stretch
  static constexpr uint32_t kEdge = 8;              // part of a stretch at each end that is not judged
  static constexpr uint64_t kWarmNs = 6000000000u;  // of the job: what limits power remembers seconds
  static constexpr double kOutlier = 1.5;           // times the mean: a checkpoint, which tells nothing
  static constexpr double kPart = 0.85;             // of the budget that is used
  static constexpr double kStep = 0.95;             // of the clock, that it falls at a time: it may jump below
  static constexpr double kFlattest = 0.1;          // nothing follows the clock less, as far as is believed
  static constexpr double kWorthIt = 0.995;         // a fall by less is not
  static constexpr double kLowest = 0.5;            // of the clock by itself: the voltage falls no further there
  static constexpr double kKnown = 0.0004;          // nothing is compared more exactly, as a fraction
  static constexpr double kConfidence = 1;          // standard deviations
  static constexpr double kInterval = 2.58;         // the same, of what is told: 99 %
  // By which a slowdown may change from stretch to stretch, as a standard deviation of it.
  static constexpr double kChange = 0.002;
  static constexpr uint32_t kRest = 2;      // rounds of stretches without anything managed, of which the last tells
  static constexpr double kByFar = 2;       // times the budget: what a clock that seemed harmless does not cost
  static constexpr double kCalmest = 0.85;  // of the clock, that the first one is at least
  static constexpr uint64_t kSampleNs = 20000000u;

  // How much longer iterations are at a clock, as a fraction: a Kalman filter of one number.
  struct Slowdown {
    uint32_t count = 0;
    double mean = 0, variance = 0;
    void learn(double longer, double its_variance);
    double deviation() const;
  };
  struct Stretch {
    Mean length, clock;  // ns, MHz
  };
  enum class Kind { kEdge, kReference, kManaged };

  uint32_t place(uint64_t iteration) const {
    return static_cast<uint32_t>((before_first_ + iteration) % (kStretches * block_));
  }
  bool reference(uint64_t iteration) const { return block_ == 0 || place(iteration) < block_; }
  Kind kind(uint64_t iteration) const;
  void catch_up();
  void restart();
  void judge();
  void rested(const Stretch& alone);
  double steepest() const;
  void choose();
  void move(double mhz);
  // Reference stretches take no longer, so the rest may take more than the budget.
  double goal() const { return kPart * terms_.budget * kStretches / (kStretches - 1); }

  Terms terms_;
  Timetable timetable_;
  Stretch before_, managed_, behind_;  // two reference stretches, and what lies between
  Mean first_;                         // lengths
  Mean natural_;                       // lengths, when nothing had been managed for long
  uint32_t rest_ = 0;                  // rounds that are still to be left alone
  bool misled_ = false;     // reference stretches take longer than the job by itself: only natural_ is believed
  Slowdown here_;           // at the present clock
  double natural_mhz_ = 0;  // where the clock is by itself
  double wanted_mhz_ = 0, harmless_mhz_ = 0, harmful_mhz_ = 0;  // 0: none yet
  Slowdown known_;                                              // at the clock before, which was harmless, or by itself
  double known_mhz_ = 0;                                        // which that was
  uint64_t before_first_ = 0;                                   // iterations that all ranks have passed by then
  uint64_t generation_ = 0, learnt_ = 0, seen_ = 0, managed_iterations_ = 0, begun_ns_ = 0;
  uint32_t block_ = 0;  // iterations of a reference stretch; 0: not known yet
  bool wants_sample_ = false, resting_ = false;
  SpinLock lock_;
};

}  // namespace powerccl
#endif
