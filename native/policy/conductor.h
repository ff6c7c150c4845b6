// SPDX-License-Identifier: Apache-2.0
// The policy `exposed`: the clock is low while a GPU only communicates and its computation waits, and up again when
// computation goes on. It decides by what runs, ahead of time where the job's iterations tell what comes next, and
// keeps to a budget of slowdown by comparing iterations with and without it.
//
// What is learnt, by iteration: when each kernel runs (Timetable); which stretches that leaves (Windows); for each of
// them whether what follows came late, and by how much, which shortens it (Margins); and over all of them whether
// iterations take longer than those that are left alone to compare with (Trial).
#ifndef POWERCCL_POLICY_CONDUCTOR_H
#define POWERCCL_POLICY_CONDUCTOR_H
#include <stdint.h>

#include "libc/spin_lock.h"
#include "policy/clock_policy.h"
#include "policy/clock_search.h"
#include "policy/joint.h"
#include "policy/lots.h"
#include "policy/slack.h"
#include "policy/steady_part.h"
#include "policy/timetable.h"
#include "policy/trial.h"
#include "policy/windows.h"

namespace powerccl {

class Conductor final : public ClockPolicy {
 public:
  struct Terms {
    double budget = 0.01;        // slowdown that may be, as a fraction
    uint64_t call_ns = 1000000;  // what a change of clock takes, until it has been measured
    uint64_t transition_ns = 10000000;
    bool dry = false;     // nothing is changed, so nothing can be measured
    bool windows = true;  // lowers the clock while communication is exposed
    bool search = false;  // lowers it for all of the job
    // Of the search: later stages and ranks with slack get a lower clock, and so do those that drew little of what is
    // drawn anew in each iteration. Of windows: GPUs ask a driver that queues in turns. Off to learn what each is
    // worth.
    bool slack = true, expert_load = true, turns = true;
    uint32_t most_mhz = 0, least_mhz = 0;  // what the search tries
    Joint* joint = nullptr;                // shared with the host's other GPUs; null: alone
    uint64_t number = 1;                   // this GPU's among them, not 0
  };
  void begin(const Terms& terms);

  void called(uint64_t call, uint32_t kind, uint32_t mhz) override;
  void all_to_all_called(uint64_t call, uint32_t kind, uint32_t mhz, uint32_t key, uint64_t received) override;
  // As long as the job makes no other calls, what is in its graphs counts instead of them.
  void graph_called(uint64_t call, uint32_t kind) override;
  uint64_t captured_begins(uint32_t kind, uint32_t mhz) override;
  bool started(uint64_t call, uint64_t start_ns) override;
  bool stopped(uint64_t call, uint64_t stop_ns) override;
  void waited(uint64_t call, uint64_t stall_ns) override;
  void rest() override;
  Wanted wanted(uint64_t now_ns) override;
  void carried_out(uint32_t mhz, uint64_t begin_ns, uint64_t end_ns) override;
  void arrived(uint64_t least_ns, uint64_t most_ns, bool precise) override;
  void took_of_core(double ns) override;
  bool wants_arrivals() const override { return times_.arrival_count < SwitchTimes::kArrivals && tries_ < kLooked; }

  // While nothing is managed and no kernel of the library runs, computation has the GPU: where its clock is then is
  // where it is by itself.
  bool wants_sample() const override { return wants_sample_ && !terms_.dry; }
  void sampled(uint32_t mhz) override;
  State state() override;

 private:
  static constexpr uint64_t kReference = 3;  // iterations before the first window
  // One block of so many is left alone to compare with: where iterations differ too much to tell, at first, once
  // nothing seems to be slower, and once that is sure; then twice as many behind each block that told the same, up to
  // so often.
  static constexpr uint32_t kSoon = 3, kFirst = 7, kRarely = 16, kVeryRarely = 40, kMostDoublings = 2;
  static constexpr uint32_t kLeastBlock = 8;                    // iterations
  static constexpr uint32_t kGraphsAlone = 8;                   // launches, before what is in them counts
  static constexpr uint64_t kCapturedCall = uint64_t{1} << 56;  // above all that is a call's number
  static constexpr uint32_t kLookEvery = 4;                     // kernels, while no iteration is known
  static constexpr uint32_t kSamples = 32;                      // quickly, then rarely: the last so many or about count
  // Power limits and temperatures remember seconds: a GPU that was spared is quick for a while.
  static constexpr uint64_t kWarmNs = 6000000000u;  // of the job, before anything is compared with
  static constexpr uint64_t kCalmNs = 6000000000u;  // the same after the job has changed
  // A job that changes when it has run for so long is compared with what is left alone then as with a later block.
  static constexpr uint64_t kWarmedThroughNs = 60000000000u;
  static constexpr uint64_t kReferenceNs = 1600000000u;  // of what clocks that are tried are compared with
  static constexpr uint64_t kTryNs = 1000000000u;
  // Left alone at a time, now and then; the end of it counts. What limits power takes 5 s to have its full effect again
  // after less work, on the emulated T4. And where iterations differ too much to tell.
  static constexpr uint64_t kSteadyNs = 4000000000u, kLimitedSteadyNs = 8000000000u, kLongNs = 16000000000u;
  static constexpr double kUnlimited = 0.95;  // of the highest clock: whoever computes at that is not limited by power
  static constexpr uint32_t kBetween = 16;    // iterations that windows have before clocks are tried
  // After a search that found nothing, or nothing that lasted, until the next; doubles each time.
  static constexpr uint64_t kSearchAgainNs = 30000000000u;
  // Without windows, which cost more than they may, before they are tried again; doubles each time.
  static constexpr double kWithoutWindowsNs = 120e9;
  // Slack is given back for so long, and twice as long each time, where iterations take longer by so many times the
  // budget: a clock that was searched does not cost that.
  static constexpr double kWithoutSlackNs = 600e9, kByFar = 2;
  static constexpr double kMemoryShare = 0.15;
  static constexpr double kPartOfBudget = 0.6;      // that the clock outside of windows may take
  static constexpr double kPartOnceKnown = 0.8;     // the same, once a trial has told what it takes,
  static constexpr double kSure = 1;                // less so many standard deviations
  static constexpr uint32_t kLongEnough = 8;        // times a block
  static constexpr double kWellKnown = 0.3;         // part of the budget to which that is known
  static constexpr double kNearBudget = 0.85;       // the same at worst, once it was lowered by what a trial told
  static constexpr double kWorthALongTrial = 0.01;  // of the clock, to lower it by
  static constexpr uint32_t kSaysEnough = 8;        // iterations left alone
  static constexpr uint32_t kTold = 12;             // iterations left alone that tell what a clock costs
  static constexpr double kPatienceNs = 500000;     // for what should have begun, beyond how well its time is known
  static constexpr uint64_t kSampleEveryNs = 3000000u, kSampleRarelyNs = 30000000u;
  static constexpr uint32_t kLooked = 24;  // changes whose arrivals are watched for: most are too small to be seen
  static constexpr uint32_t kTries = 3;    // after so many without one, what was assumed has to do
  static constexpr uint32_t kCallsBeforeTurns = 8;
  static constexpr double kQueues = 1.5, kInTurn = 1.2;
  static constexpr uint64_t kForgetAfter = 32;  // iterations without a call of the driver; doubles each time
  static constexpr uint64_t kSoonNs = 1000;     // far above what doubles round, far below what a clock takes
  static constexpr uint64_t kPause = 64;        // iterations; doubles each time
  static constexpr double kLateShare = 0.003;   // of an iteration: less is not told from chance
  static constexpr double kSlower = 0.5;        // of the time at a low clock, that computation is behind for it

  // What became of a window in one iteration.
  struct Deed {
    uint64_t iteration = UINT64_MAX;
    uint32_t first = 0;  // position of the window's first kernel: windows are counted anew when they change
    uint64_t low_ns = 0, high_ns = 0;  // when the clock was low, and up again
    bool closed = false;               // it is over for this iteration
  };

  bool inside_graphs() const { return graphs_alone_ >= kGraphsAlone && captured_ != 0; }
  bool control(uint64_t iteration) const;
  Mode own_mode(uint64_t iteration) const;
  Mode mode(uint64_t iteration) const;
  uint64_t expected_ns(uint64_t iteration) const;
  void agree(uint64_t running, uint64_t now_ns);
  void tell_search(uint64_t iteration, uint64_t duration_ns);
  void search_again(uint64_t now_ns);
  void do_without_windows();
  void do_without_slack();
  void look_without_windows();
  void take_windows_back();
  bool on_trial(uint64_t iteration) const;
  uint32_t iterations_of(uint64_t ns, uint32_t least) const;
  uint32_t alone_before() const { return (3 * steady_ + 4) / 5; }  // iterations of a block that do not count
  void choose_block();
  void weigh();
  void take_up_slack(uint64_t iteration);
  uint32_t stretched(uint32_t mhz, double stretch) const;
  bool stretched_at_all() const { return (slack_.any() || lots_.any()) && sampled_mhz_ != 0; }
  void put_on_trial(uint64_t iteration);
  void compare_after(uint64_t from, uint32_t blocks);
  void give_way();
  bool told() const;
  bool well_known() const;
  uint32_t rarely() const;
  void take_into_trial(bool touched, uint64_t duration_ns, bool tried);
  bool calm(uint64_t now_ns);
  double likely() const;
  bool lately() const;
  bool probably_too_slow() const;
  void use_what_is_left();
  double computing() const;
  void catch_up(uint64_t now_ns);
  void judge(uint64_t iteration);
  void judge_front(const Window& window, double late, double low, double length);
  void end_window(uint64_t high_ns);
  void plan();
  void find_changes();
  void take_turns();
  void restart();
  bool open(const Window& window, uint64_t iteration, double base, double jitter, uint64_t now_ns) const;
  double lateness(uint64_t iteration, const Window& window) const;
  Deed& deed(uint64_t iteration, uint32_t window) { return deeds_[iteration & 1][window]; }

  Terms terms_;
  Timetable timetable_;
  Windows windows_;
  Margins margins_;
  SwitchTimes times_;
  Trial trial_;
  Trial::Interval given_up_{};  // the slowdown because of which it gave way last
  ClockSearch search_;
  SteadyPart steady_part_;
  Slack slack_;
  Lots lots_;
  Deed deeds_[2][Windows::kMost];
  // Iterations, counted as the timetable counts them.
  uint64_t touched_[2] = {UINT64_MAX, UINT64_MAX};  // in which the clock was low, by parity
  uint64_t learnt_ = 0;                             // that are taken into account
  uint64_t generation_ = 0;                         // of the timetable
  uint64_t seen_ = 0;                               // since the job began
  uint64_t managed_ = 0;                            // how many of them were managed
  uint64_t paused_until_ = 0;
  uint64_t pause_ = kPause;
  uint64_t windows_back_ = 0;  // there are none before this iteration; 0: there are
  double without_windows_ns_ = kWithoutWindowsNs;
  uint64_t slack_back_ = 0;  // none is taken up before this iteration
  double without_slack_ns_ = kWithoutSlackNs;
  uint64_t search_again_ns_ = 0, search_pause_ns_ = kSearchAgainNs;
  uint64_t settled_ = 0;           // since which it is managed as it is now
  uint64_t compare_from_ = 0;      // the next block that is left alone
  uint64_t managed_since_ = 0;     // the last one is over
  uint64_t left_alone_until_ = 0;  // the same, whatever was changed since
  uint64_t agreed_ = 0;            // the last one whose mode is known
  uint64_t called_in_ = 0;         // the last iteration in which the driver was asked for something that teaches
  uint64_t forget_after_ = kForgetAfter;
  uint64_t acting_iteration_ = 0;
  uint64_t first_ns_ = 0;  // when the first one began
  uint64_t begun_ns_ = 0;  // when the first of all did
  double sampled_mhz_ = 0;
  double unstretched_ns_ = 0;  // how long iterations took before slack was taken up
  uint32_t samples_ = 0;
  uint32_t unsettled_ = 0;      // kernels begun while no iteration is known
  uint32_t usual_mhz_ = 0;      // outside of windows, in the last iteration
  uint32_t asked_mhz_ = 0;      // what was carried out last
  double last_found_part_ = 0;  // of where computation ran by itself, before the job changed
  uint32_t period_ = 0, last_period_ = 0;
  uint32_t steady_ = 8;  // iterations, of a block
  uint32_t block_ = 8;   // that are left alone from compare_from_ on
  double least_call_ns_ = 0, turn_ns_ = 0;
  uint32_t calls_ = 0;  // of the driver
  uint32_t tries_ = 0;
  uint32_t acting_window_ = 0, acting_first_ = 0;
  Mode modes_[4];  // of the last iterations
  // Before the next kernel begins the clock is to be changed, and the time for that is told best from this one.
  bool before_change_[Timetable::kLongest] = {};
  SpinLock lock_;
  bool compared_ = false;      // what was left alone was so lately
  uint32_t blocks_known_ = 0;  // blocks left alone since it is known well what managing costs
  bool gave_way_ = false;
  bool provisional_ = false;       // what is compared with is of a GPU that had just begun, or was managed just before
  bool windows_on_trial_ = false;  // they are back
  bool turns_ = false;             // the driver is asked in turns
  bool leads_ = true;
  bool marked_ = false;
  bool low_ = false;  // for a window, as far as was asked
  bool acting_ = false;
  bool resting_ = false;
  bool graphs_ = false;  // are among the calls
  // Graphs launched since anything else was called, and kernels in them.
  uint32_t graphs_alone_ = 0;
  uint64_t captured_ = 0;
  bool wants_sample_ = false;
};

}  // namespace powerccl
#endif
