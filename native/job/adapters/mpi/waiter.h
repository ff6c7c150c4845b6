// SPDX-License-Identifier: Apache-2.0
// One thread's waiting inside blocking calls of a library that polls: how long it has waited, and what it does with the
// core meanwhile.
//
// First it polls (spin budget), and yields the core to other threads. It yields immediately, unless peers' answers have
// come sooner than a thread switch takes. They do so while the peers run on other cores. Then it pauses, each time for
// at most a fraction of the time already waited, so that it goes on at most that fraction late. When the library moved
// something meanwhile, waiting starts again: a rank that serves others' messages while it waits serves them awake.
//
// Some libraries do not tell whether something moved. There, a poll that took much longer than usual is a sign of it.
// Interrupts look the same, so a single sign keeps the rank awake for a moment only. Signs that come again and again
// right after pauses shorten the pauses: after a pause is when a message had to wait for this rank.
#pragma once
#include <stdint.h>

#include "adapters/mpi/wait_methods.h"

namespace powerccl {

// Shared by all threads, constant once made.
struct WaitPlan {
  WaitTable table;
  WaitChoice choice;
  double fraction = 0.01;  // of the time waited: the longest pause
  bool sleeps = true;      // false: waits are watched, nothing else
  uint64_t spin_ticks = 0;
  uint64_t longest_ticks = 0;         // bound of a pause: a peer's message may have to wait so long here
  uint64_t longest_unsure_ticks = 0;  // the same where it is not known whether something moved
  uint32_t polls_apart = 16;          // polls between two pauses: so many look at everything that the library polls
  uint64_t margin_ticks = 0;          // added to several times the usual length of a poll: longer ones are signs
  uint64_t alert_ticks = 0;           // awake for so long after a sign
  uint64_t yield_ticks = 0;           // polls for so long before it offers the core to others, and between such offers
  uint64_t taken_ticks = 0;           // an offer that took longer was taken
  uint64_t answer_ticks = 0;          // what a change of threads and the way back take
  uint64_t instruction_ticks = 0;     // pauses up to here by instruction; 0: none available
};

WaitPlan make_wait_plan(const WaitTable& table, const WaitChoice& choice, double budget_percent, bool sleeps);

// A bound that a fixed share of varying values stay under, in constant space.
//
// Each value moves the bound by a share of itself. So an outlier, such as another thread's turn, moves it no further
// than any other value. The bound settles where as much goes up as goes down. At half of the shares it needs 100 values
// to follow a change. At double of them a sleep may be late by a tenth of its overshoot.
class Bound {
 public:
  uint64_t value() const { return value_; }
  void begin(uint64_t value) { value_ = value; }
  void add(uint64_t value, uint64_t rise, uint64_t fall) {
    const uint64_t step = value_ / 64 + 1;
    if (value > value_) {
      value_ += rise * step;
    } else if (value_ > fall * step) {
      value_ -= fall * step;
    }
  }

 private:
  uint64_t value_ = 0;
};

// What is known of the time since the last idle poll.
enum class Moved : uint8_t { kUnknown, kNothing, kSomething };

class Waiter {
 public:
  void begin() {
    last_ = 0;
    awake_until_ = 0;
    wait_ = 0;
    sleep_ = 0;
    polls_ = 0;
    doubt_ = 0;
    paused_ = false;
    answer_until_ = 0;
  }
  // The library has polled and nothing moved in this poll; `moved`: in those since the last idle one.
  void idle(const WaitPlan& plan, Moved moved);
  // Offers the core to other threads, and learns whether any takes it.
  void offer_core(const WaitPlan& plan, uint64_t now);
  // The call is over: what was changed for it is restored.
  void end(const WaitPlan& plan) {
    if (__builtin_expect(answer_until_ != 0, 0)) answered();
    if (__builtin_expect(slack_ns_ != 0, 0)) restore(plan);
  }

  // The core is wanted by others, as far as is known.
  bool shares_core() const { return shared_ > 0; }
  uint64_t wait_ticks() const { return wait_; }
  uint64_t sleep_ticks() const { return sleep_; }

  // Over the thread's life.
  uint64_t sleeps = 0, asked_ticks = 0, slept_ticks = 0, offers_taken = 0;

 private:
  static constexpr uint32_t kMostAnswers = 15;  // a score; each answer in vain takes two off

  bool is_sign(const WaitPlan& plan, uint64_t poll_ticks);
  void see_sign(const WaitPlan& plan, uint64_t now);
  void restore(const WaitPlan& plan);
  void expect_answer(const WaitPlan& plan, uint64_t now);
  void answered();
  bool pause(const WaitPlan& plan, uint64_t want_ticks);

  uint64_t stretch_ = 0;      // since when nothing has moved
  uint64_t awake_until_ = 0;  // no pause before
  uint64_t last_ = 0;         // end of the last look; 0: none in this call
  uint64_t wait_ = 0, sleep_ = 0;
  uint64_t last_offer_ = 0;
  Bound overshoot_;      // of sleeps, as learned
  Bound usual_[2];       // length of a poll that shows nothing; [1]: of the first after a pause, whose caches are cold
  uint32_t doubt_ = 0;   // a score of signs right after pauses
  bool paused_ = false;  // just now
  uint64_t slack_ns_ = 0;
  uint32_t polls_ = 0;   // left before the next pause
  uint32_t shared_ = 0;  // the core is wanted by others: looks left for which that is believed
  // On such a core: until when an answer is waited for before the core is offered (0: not at all). Then how well that
  // went, and how often it was not tried.
  uint64_t answer_until_ = 0;
  uint32_t answers_ = kMostAnswers, untried_ = 0;
};

}  // namespace powerccl
