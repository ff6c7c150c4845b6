// SPDX-License-Identifier: Apache-2.0
// What the conductor makes of complete iterations: what is managed, at which clock, and whether that is too slow.
#include "policy/conductor.h"

namespace powerccl {

// Iterations that are left alone: some to begin with, then a block now and then.
bool Conductor::control(uint64_t iteration) const {
  if (iteration < kReference || iteration < paused_until_) return true;
  if (terms_.search && leads_ && !search_.begun()) return true;
  return iteration >= compare_from_ && iteration - compare_from_ < block_;
}

// Whether an iteration says something about the budget: late in a block, once the GPU has got used to it.
bool Conductor::on_trial(uint64_t iteration) const {
  if (iteration < settled_) return false;
  // Windows that were too slow before may be so again, by far.
  if (iteration < compare_from_) return iteration >= managed_since_ + (windows_on_trial_ ? steady_ / 4 : steady_);
  const uint64_t place = iteration - compare_from_;
  return place < block_ && place >= alone_before();
}

// What this GPU would do in an iteration if it were for it to say.
Mode Conductor::own_mode(uint64_t iteration) const {
  const bool left_alone = control(iteration) || (search_.begun() && search_.reference(iteration));
  return {left_alone, search_.begun() && !left_alone ? search_.clock(iteration) : 0, windows_back_ == 0,
          iteration >= slack_back_};
}

// When an iteration that has not begun will begin.
uint64_t Conductor::expected_ns(uint64_t iteration) const {
  const double length = static_cast<double>(timetable_.length().mean);
  return timetable_.start_of(agreed_) + static_cast<uint64_t>(static_cast<double>(iteration - agreed_) * length);
}

Mode Conductor::mode(uint64_t iteration) const {
  if (terms_.joint == nullptr) return own_mode(iteration);
  if (iteration > agreed_) return leads_ ? own_mode(iteration) : terms_.joint->mode_at(expected_ns(iteration));
  return agreed_ - iteration < 4 ? modes_[iteration & 3] : Mode();
}

// An iteration has begun: what was said for it holds now, and the one that leads says what holds for the next.
void Conductor::agree(uint64_t running, uint64_t now_ns) {
  if (terms_.joint == nullptr || running <= agreed_) return;
  const uint64_t patience_ns = 2000000000u + 16 * static_cast<uint64_t>(timetable_.length().mean);
  modes_[running & 3] =
      leads_ && agreed_ != 0 ? own_mode(running) : terms_.joint->mode_at(timetable_.start_of(running));
  agreed_ = running;
  leads_ = terms_.joint->lead(terms_.number, now_ns, patience_ns);
  if (!leads_) return;
  const uint64_t length_ns = static_cast<uint64_t>(timetable_.length().mean);
  terms_.joint->say(own_mode(running + 1), timetable_.start_of(running) + length_ns / 2, now_ns);
}

void Conductor::restart() {
  learnt_ = 0;
  paused_until_ = agreed_ = called_in_ = 0;
  forget_after_ = kForgetAfter;
  settled_ = managed_since_ = kReference;
  compare_from_ = UINT64_MAX;
  compared_ = gave_way_ = windows_on_trial_ = provisional_ = false;
  blocks_known_ = 0;
  windows_back_ = left_alone_until_ = slack_back_ = 0;
  first_ns_ = 0;
  slack_.clear();
  lots_.clear();
  graphs_ = false;
  leads_ = terms_.joint == nullptr;
  for (Mode& each : modes_) each = {};
  period_ = last_period_ = timetable_.period();
  generation_ = timetable_.generation();
  margins_ = {};
  trial_ = {};
  if (search_.done() && search_.found_mhz() != 0 && sampled_mhz_ > 0) {
    last_found_part_ = search_.found_mhz() / sampled_mhz_;
  }
  // Another job has another clock by itself.
  samples_ = 0;
  sampled_mhz_ = 0;
  search_ = {};
  steady_part_ = {};
  windows_ = {};
  search_again_ns_ = 0;
  search_pause_ns_ = kSearchAgainNs;
  for (auto& of_parity : deeds_)
    for (Deed& each : of_parity) each = {};
  touched_[0] = touched_[1] = UINT64_MAX;
  acting_ = false;
}

// A search that found nothing may have been disturbed, or compared with what a cool GPU had in store, or windows cost
// what a clock would have: later there is another, from the second on without windows where it is not known that they
// cost nothing, and ever more rarely.
void Conductor::search_again(uint64_t now_ns) {
  if (search_.found_mhz() != 0) {
    search_again_ns_ = 0;
    return;
  }
  if (search_again_ns_ == 0) search_again_ns_ = now_ns + search_pause_ns_;
  if (now_ns < search_again_ns_) return;
  search_again_ns_ = 0;
  const bool first = search_pause_ns_ == kSearchAgainNs;
  search_pause_ns_ *= 2;
  if (!first && trial_.verdict(terms_.budget) != Trial::Verdict::kHarmless) do_without_windows();
  search_ = {};
  trial_ = {};
  samples_ = 0;
  sampled_mhz_ = 0;
}

void Conductor::do_without_windows() {
  if (!terms_.windows || windows_.count() == 0 || windows_back_ != 0) return;
  windows_back_ =
      learnt_ + 1 + static_cast<uint64_t>(without_windows_ns_ / static_cast<double>(timetable_.length().mean));
  without_windows_ns_ *= 2;
  windows_on_trial_ = false;
}

// Who takes slack up sees only what it waits for itself: where it comes last in turn with others, all are late and each
// believes that it waits.
void Conductor::do_without_slack() {
  if (!terms_.search || !terms_.slack || terms_.joint == nullptr || learnt_ < slack_back_) return;
  slack_back_ = learnt_ + 1 + static_cast<uint64_t>(without_slack_ns_ / static_cast<double>(timetable_.length().mean));
  without_slack_ns_ *= 2;
}

// They take what one clock could have.
void Conductor::look_without_windows() {
  do_without_windows();
  search_ = {};
  trial_ = {};
}

void Conductor::take_windows_back() {
  if (windows_back_ == 0 || learnt_ < windows_back_ || (terms_.search && !search_.done())) return;
  windows_back_ = 0;
  windows_on_trial_ = true;
  put_on_trial(learnt_);
}

// How many iterations last so long.
uint32_t Conductor::iterations_of(uint64_t ns, uint32_t least) const {
  const double count = static_cast<double>(ns) / static_cast<double>(timetable_.length().mean);
  return count < least ? least : count > 256 ? 256 : static_cast<uint32_t>(count);
}

// How many iterations are left alone at a time.
void Conductor::choose_block() {
  const bool limited = sampled_mhz_ < kUnlimited * terms_.most_mhz || terms_.most_mhz == 0;
  steady_ = iterations_of(limited ? kLimitedSteadyNs : kSteadyNs, kLeastBlock);
}

// The share of an iteration that takes longer as the clock falls, as far as is known.
double Conductor::computing() const {
  const double exposed = windows_.covered_ns() + windows_.too_short_ns();
  const double length = static_cast<double>(timetable_.length().mean);
  return length > exposed ? 1 - exposed / length : 0;
}

// Whether what is left alone now is of a GPU that is as it will be. A job that has just begun runs on what a cool GPU
// has in store; one that has changed later is left alone as long as in any block, and that is as good to compare with
// if its iterations are not too long for one to say enough.
bool Conductor::calm(uint64_t now_ns) {
  const bool says_enough = steady_ - alone_before() >= kSaysEnough;
  provisional_ = compare_from_ != UINT64_MAX || now_ns - begun_ns_ < kWarmedThroughNs || !says_enough;
  if (!provisional_) return learnt_ >= alone_before();
  return now_ns - begun_ns_ >= kWarmNs && now_ns - first_ns_ >= kCalmNs;
}

void Conductor::tell_search(uint64_t iteration, uint64_t duration_ns) {
  if (!terms_.search || !leads_) return;
  if (!search_.begun()) {
    choose_block();
    if (iteration < kReference || !calm(timetable_.start_of(iteration)) || !lots_.ready()) return;
    lots_.choose();
    ClockSearch::Terms terms;
    terms.most_mhz = terms_.most_mhz;
    terms.least_mhz = terms_.least_mhz;
    terms.first_mhz = sampled_mhz_;
    terms.guess_mhz = static_cast<uint32_t>(last_found_part_ * sampled_mhz_);
    terms.slowdown = kPartOfBudget * terms_.budget;
    terms.most = terms_.budget;
    terms.reference = provisional_ ? iterations_of(kReferenceNs, 6) : steady_ - alone_before();
    terms.between = terms_.windows && windows_back_ == 0 ? kBetween : 0;
    terms.block = iterations_of(kTryNs, 6);
    steady_part_.choose(timetable_);
    terms.weight = steady_part_.weight();
    search_.begin(terms, iteration + 1);
    return;
  }
  if (search_.done()) return search_again(timetable_.start_of(iteration));
  if (control(iteration)) return;
  if (duration_ns == 0) return;
  search_.iteration(iteration, duration_ns, computing(), steady_part_.of(timetable_, iteration));
  if (search_.windows_too_slow()) return look_without_windows();
  if (!search_.done()) return;
  put_on_trial(iteration + 1);
  compared_ = !provisional_;
}

// The next block that is left alone, one of so many. Where iterations differ it is longer, since the beginning of each
// does not count.
void Conductor::compare_after(uint64_t from, uint32_t blocks) {
  block_ = trial_.unclear(terms_.budget) ? iterations_of(kLongNs, 4 * kLeastBlock) : steady_;
  compare_from_ = from + (blocks - 1) * uint64_t{block_};
}

// From this iteration on it is another way of managing that may cost time. What is left alone to compare with is as
// good as before, and does not wait for it.
void Conductor::put_on_trial(uint64_t iteration) {
  trial_.forget(true);
  blocks_known_ = 0;
  settled_ = managed_since_ = iteration;
  const uint64_t planned = compare_from_;
  const bool unclear = trial_.unclear(terms_.budget) || windows_on_trial_;
  const bool known = !provisional_ && trial_.count(false) >= kTold;
  compare_after(iteration, unclear ? kSoon : known ? kRarely : kFirst);
  if (planned > iteration && planned < compare_from_) compare_from_ = planned;
}

// Keeps to the budget: gives way in steps where iterations take longer than those left alone.
void Conductor::weigh() {
  if (!leads_ || terms_.dry) return;
  // A block that is left alone is seen to its end: most of it is over before it counts.
  if (learnt_ >= compare_from_ && learnt_ - compare_from_ <= block_) return;
  const Trial::Verdict verdict = trial_.verdict(terms_.budget);
  // Close to the budget it takes long to be sure, and what is left alone meanwhile saves nothing.
  const bool close = told() && !trial_.unclear(terms_.budget) && likely() <= terms_.budget;
  const bool harmless = verdict == Trial::Verdict::kHarmless || close;
  if (harmless) {
    if (!lately()) compared_ = false;
    windows_on_trial_ = false;
    // Where iterations differ by themselves, or few were left alone, a first answer may be one by chance.
    const bool known = !trial_.unclear(terms_.budget) && trial_.count(false) >= kTold && !provisional_;
    const uint64_t later = managed_since_ + ((known ? rarely() : kSoon) - 1) * uint64_t{block_};
    if (compare_from_ > (agreed_ > learnt_ ? agreed_ : learnt_) + 2 && compare_from_ < later) compare_from_ = later;
    use_what_is_left();
  }
  if (learnt_ > compare_from_ && learnt_ - compare_from_ > block_) {
    if (lots_.choose()) trial_ = {};  // what is in it is another kind of length
    // The block is over. How soon there is another depends on how well the answer is known.
    compared_ = true;
    managed_since_ = left_alone_until_ = compare_from_ + block_;
    if (well_known()) ++blocks_known_;
    const bool soon = !harmless && trial_.unclear(terms_.budget);
    compare_after(managed_since_, soon ? kSoon : !harmless ? kFirst : rarely());
  }
  if (verdict != Trial::Verdict::kTooSlow && !probably_too_slow()) return;
  // A clock that was lowered by what a trial told has its step to go back.
  if (compared_ || (search_.lowered() && !windows_on_trial_)) return give_way();
  // What it is compared with is of some time ago, and jobs change: first another look.
  compare_after((agreed_ > learnt_ ? agreed_ : learnt_) + 2, 1);
  trial_ = {};
  blocks_known_ = 0;
}

// `tried`: while clocks were. What was left alone before any was tried is compared with until there is a block that was
// left alone later, and says enough by itself; for good where it is as good as that.
void Conductor::take_into_trial(bool touched, uint64_t duration_ns, bool tried) {
  if (!touched && provisional_ && !tried) {
    provisional_ = false;
    if (steady_ - alone_before() >= kSaysEnough) trial_.forget(false);
  }
  trial_.iteration(touched, duration_ns);
}

// Whether the trial has seen enough of a clock to correct it: all that it is had of by turns, too.
bool Conductor::told() const {
  const bool unclear = trial_.unclear(terms_.budget);
  const uint32_t managed = unclear ? 2 * steady_ : steady_, left_alone = unclear ? steady_ / 2 : kTold;
  return search_.done() && search_.found_mhz() != 0 && trial_.count(true) >= managed &&
         trial_.count(false) >= left_alone;
}

bool Conductor::well_known() const {
  return !provisional_ && told() && likely() - trial_.slowdown().estimate <= kWellKnown * terms_.budget;
}

// Where the slowdown is known well, looking again would hardly tell more, and less each time that it told the same.
// What changes in the job shows in the iterations that are managed, too.
uint32_t Conductor::rarely() const {
  if (!well_known()) return kRarely;
  return kVeryRarely << (blocks_known_ < kMostDoublings ? blocks_known_ : kMostDoublings);
}

// Whether what was left alone last is still of this job and host: then a clock that has become too slow by chance goes
// up by a step, which costs less than another look.
bool Conductor::lately() const {
  return left_alone_until_ != 0 && learnt_ < left_alone_until_ + uint64_t{kRarely} * steady_;
}

// The slowdown, and by how much it may well be off.
double Conductor::likely() const {
  const Trial::Interval found = trial_.slowdown();
  return found.estimate + (found.high - found.estimate) / Trial::kSigmas;
}

// A clock can be corrected by a step, so it needs no proof as giving up something for long does.
bool Conductor::probably_too_slow() const {
  if (!told()) return false;
  const Trial::Interval found = trial_.slowdown();
  // Near the budget much is left alone to compare with, which loses more than a step down gains.
  const double most = kNearBudget * terms_.budget;
  // What is still doubtful after so long stays so: then the estimate decides.
  const bool decides = trial_.count(true) >= kLongEnough * steady_ && !trial_.unclear(terms_.budget);
  const double doubt = decides ? 0 : likely() - found.estimate;
  return found.estimate - doubt > most;
}

// A clock was found from a few seconds of iterations. A trial that has seen more of them may know that it leaves some
// of the budget: then it goes lower, and is on trial anew.
void Conductor::use_what_is_left() {
  if (!told()) return;
  // Each step is judged anew, which takes long where iterations differ: small ones lead nowhere then, and how far one
  // may go depends on how badly anything is known.
  const bool unclear = trial_.unclear(terms_.budget);
  const double estimate = trial_.slowdown().estimate, doubt = likely() - estimate;
  const double left = unclear ? terms_.budget - estimate - doubt * doubt / terms_.budget
                              : kPartOnceKnown * terms_.budget - estimate - kSure * doubt;
  const double share = computing();
  if (left <= 0 || share <= 0.02 || (unclear && left < kWorthALongTrial * share)) return;
  if (search_.lower(left / share)) put_on_trial(learnt_);
}

void Conductor::give_way() {
  given_up_ = trial_.slowdown();
  gave_way_ = true;
  put_on_trial(learnt_);
  if (windows_on_trial_) return do_without_windows();
  if (given_up_.estimate > kByFar * terms_.budget && given_up_.low > terms_.budget) do_without_slack();
  if (search_.done() && search_.found_mhz() != 0) {
    const double share = computing();
    return search_.raise(share > 0 ? (given_up_.estimate - kPartOfBudget * terms_.budget) / share : 1);
  }
  if (terms_.search && windows_back_ == 0 && windows_.count() > 0) return look_without_windows();
  paused_until_ = learnt_ + pause_;
  settled_ = managed_since_ = paused_until_;
  compare_after(paused_until_, kFirst);
  trial_ = {};
  pause_ *= 2;
}

// A GPU that waits for others in every collective may compute more slowly, up to where it comes last itself.
void Conductor::take_up_slack(uint64_t iteration) {
  const Mode now = mode(iteration);
  // How long a graph takes says nothing about waiting.
  if (!terms_.search || !terms_.slack || terms_.joint == nullptr || terms_.dry || graphs_ || lots_.any()) return;
  if (!now.slack) {
    unstretched_ns_ = 0;
    return slack_.clear();
  }
  if (now.control) return slack_.left_alone();
  const double length = static_cast<double>(timetable_.length().mean);
  // What is had of two clocks by turns is one; others are still being tried.
  const uint32_t apart = now.mhz > usual_mhz_ ? now.mhz - usual_mhz_ : usual_mhz_ - now.mhz;
  if (apart > ClockSearch::kStepMhz) {
    usual_mhz_ = now.mhz;
    unstretched_ns_ = 0;
    return slack_.look_anew();
  }
  // Against how it was before, not against iterations left alone: those may have been of a cool GPU.
  if (!slack_.any() || unstretched_ns_ == 0) unstretched_ns_ = length;
  // One iteration that was held up is not the fault of any of this.
  const double off = static_cast<double>(timetable_.length().deviation);
  const bool too_long = length - off > (1 + 2 * terms_.budget) * unstretched_ns_;
  if (slack_.iteration(timetable_, iteration, terms_.joint, marked_, too_long)) {
    slack_.arrange(timetable_, times_, marked_);
  }
}

// The clock at which computation takes that much longer, or less long; memory does not follow the clock.
uint32_t Conductor::stretched(uint32_t mhz, double stretch) const {
  const double from = mhz != 0 ? mhz : sampled_mhz_;
  if (stretch == 1 || from == 0) return mhz;
  const double clock = from * (1 - kMemoryShare) / (stretch - kMemoryShare);
  if (clock >= terms_.most_mhz) return terms_.most_mhz;
  return clock > terms_.least_mhz ? static_cast<uint32_t>(clock / ClockSearch::kStepMhz) * ClockSearch::kStepMhz
                                  : terms_.least_mhz;
}

// Takes iterations into account that have become complete.
void Conductor::catch_up(uint64_t now_ns) {
  if (!timetable_.settle()) {
    period_ = 0;  // what was learnt stays for the summary until there is something else
    return;
  }
  if (period_ == 0 || generation_ != timetable_.generation()) restart();
  const Timetable::Run* latest = timetable_.latest();
  if (latest == nullptr || !timetable_.belongs(latest->sequence)) return;
  const uint64_t begun = timetable_.iteration_of(latest->sequence);
  // The calls have run ahead of what was looked at: what is no longer there cannot be learnt from.
  if (begun > learnt_ + 1) learnt_ = begun - 1;
  bool news = false;
  while (learnt_ < begun && timetable_.complete(learnt_)) {
    const uint64_t start_ns = timetable_.start_of(learnt_);
    const bool windowed = touched_[learnt_ & 1] == learnt_;
    const Mode then = mode(learnt_);
    const bool touched = windowed || (!then.control && (then.mhz != 0 || stretched_at_all()));
    timetable_.learn(learnt_, !touched);
    if (terms_.search && !touched && !search_.begun()) steady_part_.learn(timetable_, learnt_);
    if (!touched) lots_.learn(timetable_, learnt_);
    if (first_ns_ == 0) first_ns_ = start_ns;
    if (begun_ns_ == 0) begun_ns_ = start_ns;
    if (start_ns != 0) {
      const uint64_t duration_ns = lots_.without_luck(timetable_, learnt_, timetable_.start_of(learnt_ + 1) - start_ns);
      if (windowed) judge(learnt_);
      ++seen_;
      if (touched) ++managed_;
      tell_search(learnt_, duration_ns);
      take_up_slack(learnt_);
      // While clocks are tried, iterations are no example of anything, but for what clocks are compared with.
      const bool tried = search_.begun() && !search_.done();
      if (leads_ && (tried ? search_.first_reference(learnt_) : on_trial(learnt_))) {
        if (duration_ns != 0) take_into_trial(touched, duration_ns, tried);
      }
    }
    ++learnt_;
    news = true;
  }
  agree(begun, now_ns);
  if (!news) return;
  if (learnt_ <= kReference) {
    choose_block();
    if (!terms_.search) compare_after(kReference, kFirst);
  }
  lots_.arrange(timetable_, times_.change_ns());
  take_windows_back();
  weigh();
  plan();
}

}  // namespace powerccl
