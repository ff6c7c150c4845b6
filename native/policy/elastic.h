// SPDX-License-Identifier: Apache-2.0
// One clock for the whole job, that needs no profile and no word from another rank; and a lower one for a rank that
// waits for others anyway.
//
// Iterations come in blocks. The first block of a round is left alone, a reference; in the others the clock is lower,
// which tells how much longer iterations take for it. Time follows the clock no more than fully, so natural clock /
// (1 + budget) is safe before anything is known; from there it goes down as far as is surely harmless. Rounds are
// agreed on by counting: all ranks of a job pass the same iterations. Only the inside of a block is judged, since a
// rank may count one off.
#ifndef POWERCCL_POLICY_ELASTIC_H
#define POWERCCL_POLICY_ELASTIC_H
#include <stdint.h>

#include "libc/spin_lock.h"
#include "policy/clock_policy.h"
#include "policy/joint.h"
#include "policy/mean.h"
#include "policy/own_slack.h"
#include "policy/timetable.h"

namespace powerccl {

class Elastic final : public ClockPolicy {
 public:
  struct Terms {
    double budget = 0.01;    // slowdown that may be, as a fraction
    bool dry = false;        // nothing is changed, so nothing can be learnt: it stays at the clock that is safe
    Joint* joint = nullptr;  // shared with the host's other GPUs; null: slack is left alone
  };
  void begin(const Terms& terms);

  void called(uint64_t call, uint32_t kind, uint32_t mhz) override;
  void graph_called(uint64_t call, uint32_t kind) override;
  bool started(uint64_t call, uint64_t start_ns) override;
  bool stopped(uint64_t call, uint64_t stop_ns) override;
  void waited(uint64_t call, uint64_t stall_ns) override;
  void rest() override;
  Wanted wanted(uint64_t now_ns) override;
  bool wants_sample() const override { return wants_sample_; }
  void sampled(uint32_t mhz) override;
  State state() override;

 private:
  // Iterations of a block: so much time of them, and a power of two, that all ranks find the same one.
  static constexpr double kBlockNs = 1e9;
  static constexpr uint32_t kFewest = 8, kMost = 512;
  // Ranks see iterations begin some milliseconds apart: of so much time all find the same length.
  static constexpr double kFirstNs = 1e9;
  static constexpr uint32_t kRound = 6, kLongRound = 24;  // blocks, of which one is a reference
  static constexpr uint32_t kShortRounds = 16;            // of a job, then they are long
  static constexpr uint32_t kEdge = 8;                    // part of a block at each end that is not judged
  static constexpr uint64_t kWarmNs = 6000000000u;        // of the job: what limits power remembers seconds
  static constexpr double kOutlier = 1.5;                 // times the mean: a checkpoint, which tells nothing
  static constexpr double kPart = 0.85;                   // of the budget that is used
  static constexpr double kStep = 0.95;                   // of the clock, that it falls at a time: it may jump below
  static constexpr double kFlattest = 0.1;                // nothing follows the clock less, as far as is believed
  static constexpr double kWorthIt = 0.995;               // a fall by less is not
  // Of the natural clock: the voltage falls no further below, and above the clock is left alone.
  static constexpr double kLowest = 0.5, kHighest = 1.25;
  static constexpr double kKnown = 0.0004;   // nothing is compared more exactly, as a fraction
  static constexpr double kConfidence = 1;   // standard deviations
  static constexpr double kInterval = 2.58;  // the same, of what is told: 99 %
  // By which a slowdown may change from round to round, as a standard deviation of it.
  static constexpr double kChange = 0.002;
  static constexpr double kByFar = 2;                           // times the budget: a round is broken off
  static constexpr double kHaste = 2;                           // times what a clock costs, that it rises by
  static constexpr uint32_t kDoubtful = 4, kMostPatience = 64;  // rounds
  static constexpr uint64_t kSampleNs = 20000000u;              // on average
  static constexpr double kGolden = 0.618034;                   // multiples of it fall everywhere in an iteration

  // How much longer iterations are at a clock, as a fraction: a Kalman filter of one number.
  struct Slowdown {
    uint32_t count = 0;
    double mean = 0, variance = 0;
    void learn(double longer, double its_variance);
    double deviation() const;
  };
  enum class Part { kEdge, kReference, kManaged };
  // What becomes of the present round. Watching: nothing is managed, which tells the natural clock and length. Broken
  // off: it is left alone to its end.
  enum class Phase { kUnknown, kWatching, kManaging, kBrokenOff };

  uint32_t blocks(uint64_t iteration) const;  // of the round
  uint32_t place(uint64_t iteration) const;   // in it
  bool reference(uint64_t iteration) const { return place(iteration) < block_; }
  Part part(uint64_t iteration) const;
  void catch_up();
  void find_block(double length_ns);
  void restart();
  void take(double length_ns);
  void take_up_slack(Part its);
  void end_round();
  void watch(uint32_t rounds);
  void begin_to_manage(const Mean& alone);
  void break_off();
  void judge(const Mean& before, const Mean& between, const Mean& behind, const Mean& whole);
  double steepest() const;
  void choose();
  void lower();
  void raise();
  void move(double mhz);
  double goal() const;  // slowdown of managed iterations

  Terms terms_;
  Timetable timetable_;
  Phase phase_ = Phase::kUnknown;
  uint32_t watched_ = 0;            // rounds that are still to be watched
  uint32_t patience_ = 1;           // rounds to watch where no clock is harmless
  Mean first_;                      // lengths, ns
  Mean before_, managed_, behind_;  // the same: two references and what lies between, without edges
  uint32_t outliers_ = 0;           // in this round
  Mean whole_;                      // of a round, from reference to reference
  Mean natural_, natural_clock_;    // of a round in which nothing was managed; MHz
  bool doubted_ = false;            // natural iterations are looked at anew, for references contradict them
  bool misled_ = false;             // references are no example of the job: only natural iterations are believed
  Slowdown here_;                   // at the present clock
  Slowdown known_;                  // at the clock before, which was harmless, or the natural one
  double known_mhz_ = 0;            // which that was
  double natural_mhz_ = 0;          // where the clock is by itself while computation has the GPU
  double wanted_mhz_ = 0, harmless_mhz_ = 0, harmful_mhz_ = 0;  // 0: none yet
  OwnSlack slack_;
  uint64_t before_first_ = 0;  // iterations that all ranks have passed by then
  uint64_t generation_ = 0, learnt_ = 0, seen_ = 0, managed_iterations_ = 0, begun_ns_ = 0, sample_at_ns_ = 0;
  uint32_t block_ = 0;  // iterations; 0: not known yet
  uint32_t samples_ = 0;
  bool wants_sample_ = false, resting_ = false;
  bool graphs_ = false;  // are among the calls
  SpinLock lock_;
};

}  // namespace powerccl
#endif
