// SPDX-License-Identifier: Apache-2.0
// The clock policy that needs no platform profile and no message between ranks.
//
// Iterations are grouped into blocks, and blocks into rounds. The first block of a round is a reference block at the
// default clock. The other blocks run at a lower clock, so each round measures what that clock costs. Computation
// follows the clock at most in proportion, so default clock / (1 + budget) is safe at the start. That is the lowest
// default clock of the host's ranks: at a power limit GPUs differ, and the slowest sets the pace. From there the clock
// falls as long as the measured slowdown stays within the budget.
//
// Ranks agree on blocks by counting iterations, which all ranks of a job pass alike. The edges of a block are not
// judged, because a rank may count one iteration more or less.
#pragma once
#include <stdint.h>

#include "libc/spin_lock.h"
#include "policy/clock_policy.h"
#include "policy/iteration_profile.h"
#include "policy/mean.h"
#include "policy/node_state.h"
#include "policy/slack_reclaimer.h"
#include "policy/square_root.h"

namespace powerccl {

class LearningPolicy final : public ClockPolicy {
 public:
  struct Terms {
    double budget = 0.01;       // maximum slowdown, as a fraction; below kLeastBudget: that
    bool dry = false;           // no clock is set, so nothing can be learnt: it stays at the first clock
    NodeState* node = nullptr;  // shared by the ranks of the host; null: each decides alone, and reclaims no slack
    bool slack = true;          // is reclaimed
  };
  void begin(const Terms& terms);

  void called(uint64_t call, uint32_t kind) override;
  void graph_called(uint64_t call, uint32_t kind) override;
  bool started(uint64_t call, uint64_t start_ns) override;
  bool stopped(uint64_t call, uint64_t stop_ns) override;
  void waited(uint64_t call, uint64_t stall_ns) override;
  void rest(uint64_t now_ns) override;
  bool learns() const override { return true; }
  Wanted wanted(uint64_t now_ns) override;
  void withheld() override;
  bool wants_sample() const override { return wants_sample_; }
  void sampled(const Reading& reading) override;
  State state() override;

 private:
  // Length of a block, ns. A reference needs time to reach its own steady state: the emulated T4's power limit has a
  // memory of seconds. Blocks of 2 s learn half as fast; blocks of 0.5 s leave references biased.
  static constexpr double kBlockNs = 1e9;
  // Iterations of a block: a power of two, so that ranks that measure lengths a little apart choose the same.
  static constexpr uint32_t kFewest = 8, kMost = 512;
  // What is measured before the block is chosen: ns, and iterations. Ranks see an iteration begin some milliseconds
  // apart, which is a thousandth of this. The first clock is safe whatever the job does, so few iterations are enough.
  // So many are also a baseline at least, and so many rounds tell what their steps cost.
  static constexpr double kFirstNs = 1e9;
  static constexpr uint32_t kFirst = 4;
  // Blocks of a round. Short rounds learn fast and lose a sixth of the saving; long rounds lose a 24th.
  static constexpr uint32_t kRound = 6, kLongRound = 24;
  static constexpr uint32_t kShortRounds = 16;
  // Part of a block at each end that is not judged: a rank may count one iteration off, and a clock takes time to come.
  static constexpr uint32_t kEdge = 8;
  // Time of the job before the first judgement, ns: GPUs warm up, and power limits average over seconds. Jobs of two
  // minutes save a 25th less with twice as much.
  static constexpr uint64_t kWarmNs = 3000000000u;
  // Time of the job after which the first clock is set, ns, though the baseline is not known well. Users expect it
  // within 20 s, and finding the iteration takes some.
  static constexpr uint64_t kLatestNs = 12000000000u;
  // Times the mean length: an iteration with a checkpoint or an evaluation says nothing about the clock.
  static constexpr double kOutlier = 1.5;
  // What a clock call stalls a GPU for at most, ns. Behind a change of the clock so much of an outlier counts.
  static constexpr double kStallNs = 1e8;
  // Least budget, as a fraction. Training on H100s has Allan deviations of 0.1 to 0.3 % over 10 to 20 s, so nothing
  // smaller can be kept. Smaller budgets, 0 included, count as this one. At half, noise alone raises the clock. At
  // double,
  // `--max-slowdown 0` allows what can be measured.
  static constexpr double kLeastBudget = 0.002;
  // Part of the budget that is aimed at. The rest pays for rounds that found a clock too low.
  static constexpr double kPart = 0.85;
  // Factor by which the clock falls at most in a round. The time of a collective may jump below some clock.
  static constexpr double kStep = 0.95;
  // Least elasticity that is believed: a step by a flatter one could be of any size.
  static constexpr double kFlattest = 0.1;
  // Factor of the clock: a smaller step saves nothing that can be measured.
  static constexpr double kWorthIt = 0.995;
  // Factors of the baseline clock. Voltages of all measured boards fall no further below half of it. With slack it may
  // be half of that: the wait that is left costs less, and GPUs have such clocks. Where even a clock above it costs too
  // much, none is set.
  static constexpr double kLowest = 0.5, kLowestOfAll = 0.25, kHighest = 1.25;
  // Standard deviation of each comparison at least, and from round to round, as a fraction of the length.
  static constexpr double kKnown = 0.0004, kChange = 0.002;
  // Standard deviations: to raise a clock, to lower it, and of the interval that is reported (99 %). In noisy jobs one
  // deviation would lower it by chance.
  static constexpr double kRaiseConfidence = 1, kLowerConfidence = 2, kInterval = 2.58;
  // Rounds for which references are taken to be biased before the baseline is measured again: at first, and at most.
  // They are twice as many each time that this is confirmed.
  static constexpr uint32_t kBiased = 8, kMostBiased = 64;
  // Times the budget: a round that costs so much is aborted.
  static constexpr double kAbort = 2;
  // Times the slowdown of a clock, by which the clock rises. Twice, since computation follows it only in part.
  static constexpr double kRaise = 2;
  // Rounds at the default clock at most, where references are suspected or no clock keeps the budget. It is one at
  // first, and twice as many each time.
  static constexpr uint32_t kMostBackoff = 64;
  // Times the backoff: after so many judged rounds it is half as long.
  static constexpr uint32_t kCalm = 2;
  // Rounds at a clock, behind which a lower one is tried again that was found harmful.
  static constexpr uint32_t kPatience = 16;
  // Parts of the budget. References are suspected where the job is slower than the baseline by the first. They must
  // show less of it, by the second. They are biased where they differ from a new baseline by the second.
  static constexpr double kSlower = 0.5, kUnlike = 0.25;
  // Part of what may be spent: where the steps between the clocks take more, no clock is worth them.
  static constexpr double kSteps = 0.2;
  // Time between two samples on average, ns: of the baseline clock, and while a lower one is set. Multiples of the
  // golden ratio spread them over all parts of an iteration. A change from outside has to be seen within two seconds.
  static constexpr uint64_t kSampleNs = 20000000u, kWatchNs = 1000000000u;
  // Times the clock that was asked for: above it, the clock is not in force. Drivers round to 15 MHz or less.
  static constexpr double kHonoured = 1.02;
  // NVML's clocks event reasons that no job asks for: slowdowns by hardware, by heat and by a power brake.
  static constexpr uint64_t kOutside = 0x8 | 0x20 | 0x40 | 0x80;
  static constexpr double kGolden = 0.618034;

  // Slowdown at a clock, as a fraction: a Kalman filter of one number.
  struct Slowdown {
    uint32_t count = 0;
    double mean = 0, variance = 0;
    void learn(double longer, double its_variance);
    double deviation() const { return square_root(variance); }
  };
  enum class Part { kEdge, kReference, kManaged };
  // kUnknown: the iteration is not known yet. kBaseline: no clock is set, and the default clock and length are
  // measured. kManaging: rounds are managed and judged. kAborted: this round cost too much, and ends at the default
  // clock.
  //
  // Transitions:
  // - kUnknown -> kBaseline: enough iterations were seen (choose_block).
  // - kBaseline -> kManaging: it is measured (begin_to_manage).
  // - kManaging -> kAborted: managed iterations cost far too much (abort_round); -> kManaging with the next round.
  // - kManaging -> kBaseline: references contradict the baseline (judge), no clock keeps the budget (raise), or the GPU
  //   is limited otherwise (look_outside). Also where another rank of the host has found so (join_others).
  // - any -> kUnknown: the job has another iteration from now on (catch_up, restart).
  enum class Phase { kUnknown, kBaseline, kManaging, kAborted };

  uint32_t blocks(uint64_t iteration) const;                // of the round
  uint64_t round(uint64_t iteration) const;                 // iterations of it
  uint32_t place(uint64_t iteration) const;                 // in it
  uint64_t now() const { return before_first_ + learnt_; }  // iterations of the job
  uint64_t calls(uint64_t iterations) const { return iterations * profile_.period(); }
  bool warm() const { return profile_.start_of(learnt_ + 1) >= begun_ns_ + kWarmNs; }
  bool reference(uint64_t iteration) const { return place(iteration) < block_; }
  Part part(uint64_t iteration) const;
  void catch_up();
  void choose_block(double length_ns);
  void restart();
  void take(double length_ns);
  void join_others();
  void reclaim_slack(Part present);
  void end_round();
  void look_outside();
  void measure_baseline(uint64_t until);
  void measure_with_others(uint64_t until);
  void measure_again();
  void begin_to_manage();
  double known_baseline_mhz() const, lowest_baseline_mhz() const;
  double safe(double baseline_mhz) const;  // the highest clock that is tried
  void abort_round();
  void judge(const Mean& before, const Mean& between, const Mean& after, const Mean& whole, double lowered);
  void take_for_biased(bool biased);
  double steepest() const;
  void choose();
  void decide();
  double within(double mhz) const;
  double agreed(double mhz) const;
  void lower();
  void raise();
  void move(double mhz);
  double managed_share() const;
  double goal() const;  // slowdown of managed iterations

  Terms terms_;
  IterationProfile profile_;
  Phase phase_ = Phase::kUnknown;
  uint32_t backoff_ = 1;  // baseline rounds where no clock keeps the budget
  uint32_t calm_ = 0;     // rounds judged since it changed
  // Lengths of iterations, ns: the first ones; of two reference blocks and of what is between, without edges; of the
  // whole round so far.
  Mean first_, before_, managed_, after_, whole_;
  uint32_t outliers_ = 0, lowered_ = 0;  // of this round; iterations of it at a lower clock
  bool withheld_ = false;                // the clock was not in force in a part of this round, so it says nothing
  // Of the baseline: lengths, ns, and the clock while computation runs, MHz.
  Mean baseline_, baseline_clock_;
  double baseline_mhz_ = 0;
  // Of the one that is being measured: lengths, and from when until when, in iterations of the job. Until 0: as soon as
  // it is known.
  Mean next_;
  uint64_t baseline_from_ = 0, baseline_until_ = 0;
  Reading usual_, present_;    // when the baseline was measured, and now
  uint64_t looked_again_ = 0;  // since they differed: the iteration of the job
  bool suspected_ = false;     // references contradict the baseline, which is measured again
  bool biased_ = false;        // references differ from the baseline, so only the baseline is compared with
  uint32_t biased_rounds_ = 0, biased_for_ = kBiased;  // still to be judged so; how many the next time
  // Before the baseline was measured again: the last reference, and the clock that was wanted. It is wanted again where
  // the job has not changed.
  Mean reference_;
  double left_mhz_ = 0;
  Slowdown here_;   // at the present clock
  Mean steps_;      // what the steps between the clocks cost of it, by round
  Slowdown lean_;   // what references were longer than what was compared with
  Slowdown known_;  // at known_mhz_, the clock before
  double known_mhz_ = 0;
  double wanted_mhz_ = 0, harmless_mhz_ = 0, harmful_mhz_ = 0;  // 0: none yet
  SlackReclaimer slack_;
  bool graphs_ = false;        // CUDA graphs are among the calls
  uint64_t before_first_ = 0;  // iterations of the job before the first one that is known
  uint32_t block_ = 0;         // iterations; 0: not chosen yet
  uint64_t generation_ = 0, learnt_ = 0, seen_ = 0, managed_iterations_ = 0, begun_ns_ = 0;
  uint64_t sample_at_ns_ = 0;
  uint32_t samples_ = 0;
  bool wants_sample_ = false, resting_ = false, asked_ = false;  // asked: for the clock that is sampled
  SpinLock lock_;
};

}  // namespace powerccl
