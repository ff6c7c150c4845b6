// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/waiter.h"

namespace powerccl {
namespace {

// WaitPlan says what these are for. Half of the spin time sleeps in waits that end immediately; double saves little
// there.
constexpr double kSpinUs = 150.0;
// Most of what a long wait costs is the number of its sleeps: a quarter less in 1 s than with 2 ms. 10 ms saves none
// there, and a sleep that wakes late then exceeds 1 % of it. If the library does not report progress, one message after
// another may find the rank asleep; half costs 6 % more sleeps.
constexpr double kLongestUs = 8000.0, kLongestUnsureUs = 5000.0;
// A poll is a sign if it takes so many times the usual length, plus a margin. A poll takes 0.1 us (MPICH over UCX) to
// 1 us, and serving a message adds 1 us. Double of either constant misses small messages. Half of either takes one poll
// in ten for a sign.
constexpr uint64_t kTimesUsual = 4;
constexpr double kMarginUs = 0.25;
constexpr double kFirstUsualUs = 1.0;  // before any poll was measured
// Peers that are served one after the other come again within this time. Half of it is a thread switch and back on a
// slow machine. Double of it costs a rank on a busy machine 1 % of its time.
constexpr double kAlertUs = 50.0;
// Signs right after pauses: each adds kSign to a score, and each pause without a sign takes one off. From kBelieved on,
// every sign halves the time waited. Three signs in a row are believed. A busy machine makes one in 20 pauses.
constexpr uint32_t kSign = 3, kBelieved = 9, kMostDoubt = 15;
constexpr double kYieldUs = 20.0;
constexpr double kMostTakenUs = 30.0;  // an offer that takes longer was taken: a thread switch and back are 6 us
constexpr uint64_t kCallsAnOffer = 5;  // sched_yield() with no taker is three to four empty calls long
constexpr int kCallsTried = 32;
constexpr double kInstructionUs = 200.0;
// A core counts as shared for so many offers or pauses since the last offer that was taken.
constexpr uint32_t kSharedFor = 256;
constexpr double kAnswerUs = 3.0;
// From a score of so many answers on (at most kMostAnswers) the rank waits kAnswerUs before it yields. Below that it
// tries once in so many waits.
constexpr uint32_t kEnoughAnswers = 4;
constexpr uint32_t kTriesApart = 256;

// How long an offer of the core takes at most if no thread takes it. Not by trying: while a job starts, most are taken.
uint64_t offer_ticks(const WaitTable& table) {
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < kCallsTried; ++i) {
    const uint64_t before = table.now(table.context);
    table.empty_call(table.context);
    const uint64_t took = table.now(table.context) - before;
    if (took < least) least = took;
  }
  return kCallsAnOffer * least + static_cast<uint64_t>(table.ticks_per_us / 4);
}

}  // namespace

WaitPlan make_wait_plan(const WaitTable& table, const WaitChoice& choice, double budget_percent, bool sleeps) {
  WaitPlan plan;
  plan.table = table;
  plan.choice = choice;
  plan.fraction = budget_percent / 100.0;
  plan.sleeps = sleeps;
  const double us = table.ticks_per_us;
  plan.spin_ticks = static_cast<uint64_t>(kSpinUs * us);
  plan.longest_ticks = static_cast<uint64_t>(kLongestUs * us);
  plan.longest_unsure_ticks = static_cast<uint64_t>(kLongestUnsureUs * us);
  plan.margin_ticks = static_cast<uint64_t>(kMarginUs * us);
  plan.alert_ticks = static_cast<uint64_t>(kAlertUs * us);
  plan.yield_ticks = static_cast<uint64_t>(kYieldUs * us);
  plan.taken_ticks = offer_ticks(table);
  const uint64_t most_taken = static_cast<uint64_t>(kMostTakenUs * us);
  if (plan.taken_ticks > most_taken) plan.taken_ticks = most_taken;
  plan.answer_ticks = static_cast<uint64_t>(kAnswerUs * us);
  plan.instruction_ticks = static_cast<uint64_t>(kInstructionUs * us);
  return plan;
}

void Waiter::idle(const WaitPlan& plan, Moved moved) {
  const uint64_t now = plan.table.now(plan.table.context);
  if (last_ == 0 || moved == Moved::kSomething) {
    stretch_ = now;
    awake_until_ = now + plan.spin_ticks;
    polls_ = 0;
    if (shared_ > 0) expect_answer(plan, now);
  } else if (moved == Moved::kUnknown && is_sign(plan, now - last_)) {
    see_sign(plan, now);
  } else {
    wait_ += now - last_;
  }
  paused_ = false;
  const uint64_t waited = now - stretch_;
  last_ = now;
  if (now < awake_until_ || !plan.sleeps) {
    if ((shared_ > 0 && now >= answer_until_) || (waited > plan.yield_ticks && now - last_offer_ > plan.yield_ticks))
      offer_core(plan, now);
    return;
  }
  if (polls_ > 0) {
    --polls_;
    return;
  }
  uint64_t want = static_cast<uint64_t>(static_cast<double>(waited) * plan.fraction);
  const uint64_t longest = moved == Moved::kUnknown ? plan.longest_unsure_ticks : plan.longest_ticks;
  if (want > longest) want = longest;
  if (!pause(plan, want)) {
    if (shared_ > 0 || now - last_offer_ > plan.yield_ticks) offer_core(plan, now);
    return;
  }
  polls_ = plan.polls_apart;
  paused_ = true;
  const uint64_t after = plan.table.now(plan.table.context);
  const uint64_t took = after - now;
  wait_ += took;
  sleep_ += took;
  slept_ticks += took;
  if (shared_ > 0) --shared_;  // another thread may use the core meanwhile
  ++sleeps;
  last_ = after;
}

// Whether the poll was much longer than usual.
bool Waiter::is_sign(const WaitPlan& plan, uint64_t poll_ticks) {
  Bound& usual = usual_[paused_ ? 1 : 0];
  if (usual.value() == 0) usual.begin(static_cast<uint64_t>(kFirstUsualUs * plan.table.ticks_per_us));
  const bool sign = poll_ticks > kTimesUsual * usual.value() + plan.margin_ticks;
  usual.add(poll_ticks, 4, 2);  // two thirds of them
  if (paused_ && !sign && doubt_ > 0) --doubt_;
  return sign;
}

void Waiter::see_sign(const WaitPlan& plan, uint64_t now) {
  if (awake_until_ < now + plan.alert_ticks) awake_until_ = now + plan.alert_ticks;
  if (!paused_) return;  // it was served by a rank that was awake
  if (doubt_ < kMostDoubt) doubt_ += kSign;
  if (doubt_ >= kBelieved) stretch_ += (now - stretch_) / 2;
}

// Something is waited for on a core that others want.
void Waiter::expect_answer(const WaitPlan& plan, uint64_t now) {
  if (answer_until_ != 0) answered();
  if (answers_ >= kEnoughAnswers || ++untried_ % kTriesApart == 0) answer_until_ = now + plan.answer_ticks;
}

void Waiter::answered() {
  answer_until_ = 0;
  if (answers_ < kMostAnswers) ++answers_;
  if (answers_ < kEnoughAnswers) answers_ = kEnoughAnswers;  // tries are rare: one that went well is followed up
  if (shared_ > 0) --shared_;
}

void Waiter::offer_core(const WaitPlan& plan, uint64_t now) {
  if (answer_until_ != 0) {  // in vain
    answer_until_ = 0;
    answers_ = answers_ > 2 ? answers_ - 2 : 0;
  }
  plan.table.yield(plan.table.context);
  last_ = last_offer_ = plan.table.now(plan.table.context);
  wait_ += last_ - now;
  if (last_ - now > plan.taken_ticks) {
    shared_ = kSharedFor;
    ++offers_taken;
  } else if (shared_ > 0) {
    --shared_;
  }
}

// False: so short a pause cannot be had here.
bool Waiter::pause(const WaitPlan& plan, uint64_t want) {
  const uint64_t us = static_cast<uint64_t>(plan.table.ticks_per_us);
  if (plan.choice.instruction != WaitMethod::kSpin && want <= plan.instruction_ticks && shared_ == 0) {
    if (want < us) return false;
    asked_ticks += want;
    pause_with(plan.table, plan.choice.instruction, want);
    return true;
  }
  if (!plan.choice.may_sleep) return false;
  if (overshoot_.value() == 0) overshoot_.begin(plan.choice.overshoot_ticks);
  // At most half of the longest sleep: whatever was learned, a long wait sleeps now and then, and learns again.
  const uint64_t most = plan.longest_unsure_ticks / 2;
  const uint64_t overshoot = overshoot_.value() < most ? overshoot_.value() : most;
  if (want < overshoot + us) return false;
  if (slack_ns_ == 0) slack_ns_ = plan.table.slack(plan.table.context, 1);
  const uint64_t length = want - overshoot;
  asked_ticks += want;
  const uint64_t before = plan.table.now(plan.table.context);
  plan.table.sleep(plan.table.context,
                   static_cast<uint64_t>(static_cast<double>(length) * 1000.0 / plan.table.ticks_per_us));
  const uint64_t took = plan.table.now(plan.table.context) - before;
  // A quarter of them: what the timer does. Others' turns make the rest later, and would make a poll as late.
  overshoot_.add(took > length ? took - length : 0, 1, 3);
  return true;
}

void Waiter::restore(const WaitPlan& plan) {
  plan.table.slack(plan.table.context, slack_ns_);
  slack_ns_ = 0;
}

}  // namespace powerccl
