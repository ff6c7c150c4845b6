// SPDX-License-Identifier: Apache-2.0
#include "policy/learning_policy.h"

namespace powerccl {

void LearningPolicy::Slowdown::learn(double longer, double its_variance) {
  if (count++ == 0) {
    mean = longer;
    variance = its_variance;
    return;
  }
  variance += kChange * kChange;
  const double gain = variance / (variance + its_variance);
  mean += gain * (longer - mean);
  variance *= 1 - gain;
}

void LearningPolicy::begin(const Terms& terms) {
  SpinGuard guard(lock_);
  terms_ = terms;
  if (terms_.budget < kLeastBudget) terms_.budget = kLeastBudget;
  profile_.begin_with(terms.node);
}

void LearningPolicy::called(uint64_t call, uint32_t kind) {
  SpinGuard guard(lock_);
  resting_ = false;
  profile_.called(call, kind);
}

void LearningPolicy::graph_called(uint64_t call, uint32_t kind) {
  called(call, kind);
  SpinGuard guard(lock_);
  graphs_ = true;
}

bool LearningPolicy::started(uint64_t call, uint64_t start_ns) {
  SpinGuard guard(lock_);
  if (!profile_.started(call, start_ns)) return false;
  if (!profile_.settled()) return true;
  const uint64_t sequence = profile_.latest()->sequence;
  return profile_.belongs(sequence) && profile_.position_of(sequence) == 0;
}

bool LearningPolicy::stopped(uint64_t call, uint64_t stop_ns) {
  SpinGuard guard(lock_);
  profile_.stopped(call, stop_ns);
  return false;
}

void LearningPolicy::waited(uint64_t call, uint64_t stall_ns) {
  SpinGuard guard(lock_);
  profile_.waited(call, stall_ns);
}

void LearningPolicy::rest(uint64_t /*now_ns*/) {
  SpinGuard guard(lock_);
  resting_ = true;
}

// By the number of the iteration alone, so that all ranks agree.
uint32_t LearningPolicy::blocks(uint64_t iteration) const {
  return before_first_ + iteration < uint64_t{kShortRounds} * kRound * block_ ? kRound : kLongRound;
}

uint64_t LearningPolicy::round(uint64_t iteration) const {
  return uint64_t{blocks(iteration)} * block_;
}

uint32_t LearningPolicy::place(uint64_t iteration) const {
  return static_cast<uint32_t>((before_first_ + iteration) % round(iteration));
}

LearningPolicy::Part LearningPolicy::part(uint64_t iteration) const {
  const uint32_t at = place(iteration), edge = block_ / kEdge;
  if (at < block_) return at >= block_ / 2 && at < block_ - edge ? Part::kReference : Part::kEdge;
  return at >= block_ + edge && at < blocks(iteration) * block_ - edge ? Part::kManaged : Part::kEdge;
}

// Of a round, what may cost something. Reference blocks cost nothing, unless they are biased.
double LearningPolicy::managed_share() const {
  return biased_ ? 1 : 1 - 1.0 / blocks(learnt_);
}

double LearningPolicy::goal() const {
  return kPart * terms_.budget / managed_share();
}

void LearningPolicy::restart() {
  generation_ = profile_.generation();
  before_first_ = profile_.before();
  phase_ = Phase::kUnknown;
  first_ = before_ = managed_ = after_ = whole_ = baseline_ = next_ = Mean();
  lean_ = Slowdown();
  wanted_mhz_ = 0;
  // An unmanaged iteration may have been a part of one, or several.
  if (managed_iterations_ == 0) seen_ = 0;
  slack_.clear();
  suspected_ = biased_ = graphs_ = false;
  biased_for_ = kBiased;
  learnt_ = 0;
  block_ = 0;
  backoff_ = 1;
}

void LearningPolicy::catch_up() {
  if (!profile_.settle()) {
    phase_ = Phase::kUnknown;
    block_ = 0;
    return;
  }
  if (generation_ != profile_.generation()) restart();
  const IterationProfile::Run* latest = profile_.latest();
  if (latest == nullptr || !profile_.belongs(latest->sequence)) return;
  const uint64_t begun = profile_.iteration_of(latest->sequence);
  if (begun > learnt_ + 1 && !profile_.complete(learnt_)) learnt_ = begun - 1;
  for (; learnt_ < begun && profile_.complete(learnt_); ++learnt_) {
    const uint64_t start_ns = profile_.start_of(learnt_);
    if (start_ns == 0) continue;
    profile_.learn(learnt_);
    if (begun_ns_ == 0) begun_ns_ = start_ns;
    const auto length_ns = static_cast<double>(profile_.start_of(learnt_ + 1) - start_ns);
    ++seen_;
    block_ == 0 ? choose_block(length_ns) : take(length_ns);
  }
  join_others();
}

// A rank that goes on alone would see iterations that are neither managed nor a baseline, and so would all others.
void LearningPolicy::join_others() {
  if (terms_.node == nullptr || phase_ != Phase::kManaging) return;
  const NodeState::Until shared = terms_.node->measured_until();
  const uint64_t until = shared.calls / profile_.period();
  if (until <= now() + kFirst) return;
  suspected_ = shared.suspected;
  measure_baseline(until);
}

// Another power limit, or a slowdown by heat that is over: the baseline says nothing any more. Once a round, because
// such slowdowns may come and go.
void LearningPolicy::look_outside() {
  const uint64_t gone = usual_.reasons & ~present_.reasons & kOutside;
  if (present_.limit_mw == usual_.limit_mw && gone == 0) return;
  if (now() < looked_again_ + round(learnt_)) return;
  looked_again_ = now();
  suspected_ = false;
  measure_with_others(now() + 1 + block_);
}

void LearningPolicy::choose_block(double length_ns) {
  first_.add(length_ns);
  if (warm()) next_.add(length_ns);
  if (first_.count < kFirst || first_.count * first_.mean < kFirstNs) return;
  for (block_ = kFewest; block_ < kMost && block_ * first_.mean < kBlockNs;) block_ *= 2;
  const Mean seen = next_;  // at the default clock as well
  measure_baseline(0);
  next_ = seen;
}

// Its last round counts: before that, lower clocks may still be felt.
void LearningPolicy::measure_baseline(uint64_t until) {
  if (phase_ == Phase::kManaging) {
    reference_ = before_;
    left_mhz_ = wanted_mhz_;
  }
  phase_ = Phase::kBaseline;
  baseline_until_ = until;
  baseline_from_ = now() + 1 + (until > 0 ? block_ / kEdge : 0);
  if (until > baseline_from_ + round(learnt_)) baseline_from_ = until - round(learnt_);
  wanted_mhz_ = 0;
  baseline_clock_ = next_ = Mean();
  sample_at_ns_ = 0;
}

// With all ranks of the host, and for longer each time.
void LearningPolicy::measure_again() {
  measure_with_others(now() + 1 + (backoff_ + 1) * round(learnt_));  // one more: the present round was managed in part
  if (backoff_ < kMostBackoff) backoff_ *= 2;
  calm_ = 0;
}

void LearningPolicy::measure_with_others(uint64_t until) {
  if (terms_.node != nullptr) terms_.node->measure_until(calls(until), suspected_);
  measure_baseline(until);
}

void LearningPolicy::take(double length_ns) {
  const Part present = part(learnt_);
  if (phase_ == Phase::kManaging && !reference(learnt_)) {
    ++lowered_;
    if (!withheld_) ++managed_iterations_;
  }
  if (whole_.count < 3 || length_ns < kOutlier * whole_.mean) {
    whole_.add(length_ns);
    if (phase_ == Phase::kBaseline && now() >= baseline_from_ && warm()) next_.add(length_ns);
    if (present != Part::kEdge) (present == Part::kManaged ? managed_ : after_).add(length_ns);
  } else if (++outliers_ % kFewest == 0) {
    whole_ = managed_ = next_ = Mean();  // so many are no checkpoints: this is the new length
  } else if (phase_ == Phase::kManaging && place(learnt_) % block_ <= block_ / kEdge && place(learnt_) < 2 * block_) {
    // At the beginning of a reference, or of what comes behind it: the clock call may have stalled the GPU.
    whole_.add(length_ns < whole_.mean + kStallNs ? length_ns : whole_.mean + kStallNs);
  }
  if (phase_ == Phase::kManaging && !terms_.dry) {
    // A graph's duration includes its computation, so it says nothing about waiting.
    if (terms_.node != nullptr && terms_.slack && !graphs_) reclaim_slack(present);
    if (present == Part::kManaged && managed_.count % kFewest == 0) abort_round();
  }
  if (place(learnt_) + 1 == block_ - block_ / kEdge) end_round();
  if (phase_ == Phase::kManaging && !terms_.dry) look_outside();
  if (phase_ == Phase::kBaseline && now() + 1 >= baseline_until_) begin_to_manage();
}

void LearningPolicy::reclaim_slack(Part present) {
  if (present != Part::kManaged || withheld_) return slack_.restart();
  slack_.iteration(profile_, learnt_, terms_.node);
  if (place(learnt_) % (block_ / 2) == 0) slack_.adjust(profile_);
}

// A round that costs far too much ends immediately.
void LearningPolicy::abort_round() {
  const Mean& usual = biased_ ? baseline_ : before_;
  if (usual.count < 2 || managed_.count < 2) return;
  const double variance = (managed_.variance_of_mean() + usual.variance_of_mean()) / (usual.mean * usual.mean);
  const double longer = managed_.mean / usual.mean - 1;
  if (longer - 2 * square_root(variance) < kAbort * terms_.budget) return;
  phase_ = Phase::kAborted;
  here_ = {1, longer, variance};
  raise();
}

// The reference block behind the managed ones is over.
void LearningPolicy::end_round() {
  const Mean before = before_, between = managed_, after = after_, whole = whole_;
  before_ = after_;
  managed_ = after_ = whole_ = Mean();
  outliers_ = 0;
  const double lowered = static_cast<double>(lowered_) / whole.count;
  lowered_ = 0;
  const bool in_force = !withheld_;
  withheld_ = false;
  if (phase_ == Phase::kAborted) {
    phase_ = Phase::kManaging;
  } else if (phase_ == Phase::kManaging && !terms_.dry && in_force && between.count > 1) {
    judge(before, between, after, whole, lowered);
  }
}

void LearningPolicy::begin_to_manage() {
  if (next_.count < kFirst || baseline_clock_.count < 2) return;
  if (baseline_until_ == 0) {
    const double error = square_root(next_.variance_of_mean()) / next_.mean;
    if (error > kUnlike * terms_.budget && profile_.start_of(learnt_) < begun_ns_ + kLatestNs) return;
    if ((now() + 1) % (block_ / 4) != 0) return;  // all ranks begin together
  }
  const Mean baseline = next_;
  bool unmoved = false;
  if (suspected_) {
    // Where the baseline is the old one and the reference was not, it is the reference that was wrong.
    const double moved = baseline.mean / baseline_.mean - 1, off = reference_.mean / baseline.mean - 1;
    const double error = square_root(reference_.variance_of_mean() + baseline.variance_of_mean()) / baseline.mean;
    const double least = kUnlike * terms_.budget + 2 * error;
    unmoved = -terms_.budget < moved && moved < terms_.budget;
    const bool is_off = off > least || off < -least;
    take_for_biased(unmoved && is_off);
  }
  suspected_ = false;
  baseline_ = before_ = baseline;
  managed_ = after_ = whole_ = Mean();
  lowered_ = 0;
  phase_ = Phase::kManaging;
  harmless_mhz_ = 0;
  if (!unmoved) harmful_mhz_ = 0;
  known_mhz_ = lowest_baseline_mhz();
  baseline_mhz_ = known_baseline_mhz();
  known_ = {1, 0, kKnown * kKnown};
  steps_ = Mean();
  move(agreed(unmoved ? left_mhz_ : safe(known_mhz_)));
}

// Time follows the clock at most in proportion.
double LearningPolicy::safe(double baseline_mhz) const {
  return baseline_mhz / (1 + goal());
}

// None may think by chance that its clock is the lowest of all.
double LearningPolicy::known_baseline_mhz() const {
  return baseline_clock_.mean + 2 * square_root(baseline_clock_.variance_of_mean());
}

// At a power limit GPUs differ, and the slowest sets the pace where all do the same: no other need be faster.
double LearningPolicy::lowest_baseline_mhz() const {
  const double own = known_baseline_mhz();
  return terms_.node != nullptr ? terms_.node->lowest_mhz(calls(baseline_until_), own) : own;
}

// For a number of rounds: then the baseline is measured again, since the job may have changed.
void LearningPolicy::take_for_biased(bool biased) {
  biased_ = biased;
  if (!biased) biased_for_ = kBiased;
  biased_rounds_ = biased_for_;
  if (biased && biased_for_ < kMostBiased) biased_for_ *= 2;
}

void LearningPolicy::judge(const Mean& before, const Mean& between, const Mean& after, const Mean& whole,
                           double lowered) {
  // All of a round counts: clock calls may stall it at its edges, and biased references are part of what the job takes.
  const double unlike = between.mean / baseline_.mean - 1;
  const double error = square_root(between.variance_of_mean() + baseline_.variance_of_mean()) / baseline_.mean;
  if (biased_) {
    // A lower clock makes nothing faster: where it seems so, the job has changed.
    if (--biased_rounds_ == 0 || unlike + 2 * error < -kSlower * terms_.budget) {
      suspected_ = true;
      backoff_ = 1;
      return measure_again();
    }
    here_.learn(whole.mean / baseline_.mean - 1, error * error + kKnown * kKnown);
  } else if (before.count > 1 && after.count > 1) {
    const double seen = (before.mean + after.mean) / 2;
    double usual = seen;
    // A slightly longer reference is still under the influence of the managed blocks before it.
    if (baseline_.mean < usual && usual < baseline_.mean * (1 + terms_.budget)) usual = baseline_.mean;
    const double longer = between.mean / usual - 1;
    const double apart = (after.mean - before.mean) / usual;
    const double variance =
        (between.variance_of_mean() + (before.variance_of_mean() + after.variance_of_mean()) / 4) / (usual * usual);
    const double its_variance = variance + apart * apart / 16 + kKnown * kKnown;
    // Either the job has changed or references are biased, one way or the other. A lower clock makes nothing faster.
    const double unsure = 2 * square_root(error * error + its_variance);
    const bool slower =
        unlike - 2 * error > kSlower * terms_.budget && unlike - longer - unsure > kUnlike * terms_.budget;
    const bool faster = longer - unlike - 2 * error > terms_.budget;
    const bool faster_than_references = longer + 2 * square_root(its_variance) < -terms_.budget;
    if (slower || faster || faster_than_references) {
      suspected_ = true;
      return measure_again();
    }
    const double all = (whole.mean / usual - 1) / lowered;
    here_.learn(all, its_variance);
    lean_.learn(seen / usual - 1, its_variance);
    steps_.add(all - longer);
  }
  if (backoff_ > 1 && ++calm_ >= kCalm * backoff_) {
    backoff_ /= 2;
    calm_ = 0;
  }
  choose();
}

// In steps that the ranks of a host can tell each other.
double LearningPolicy::within(double mhz) const {
  const double lowest = kLowest * baseline_mhz_;
  return NodeState::told(mhz < lowest ? lowest : mhz);
}

void LearningPolicy::move(double mhz) {
  wanted_mhz_ = within(mhz);
  here_ = Slowdown();
}

// An upper bound of the elasticity below the present clock, from the last two clocks.
double LearningPolicy::steepest() const {
  const double lever = known_mhz_ / wanted_mhz_ - 1;
  if (lever <= 0) return 1;
  const double error = square_root(here_.variance + known_.variance) / lever;
  const double most = (here_.mean - known_.mean) / lever + 2 * error;
  return most > 1 ? 1 : most < kFlattest ? kFlattest : most;
}

// All ranks of the host go to one clock: the slowest sets the pace, and a faster one would only wait for it.
double LearningPolicy::agreed(double mhz) const {
  return terms_.node != nullptr ? within(terms_.node->agree_on_clock(calls(now()), within(mhz))) : mhz;
}

void LearningPolicy::choose() {
  if (here_.count == 0) return;
  const double before_mhz = wanted_mhz_, known_mhz = known_mhz_;
  const Slowdown before = here_, known = known_;
  decide();
  if (phase_ != Phase::kManaging) return;
  const double mhz = agreed(wanted_mhz_);
  if (mhz == wanted_mhz_) return;
  // Another rank was the first to judge this round.
  move(mhz);
  if (mhz == before_mhz) here_ = before;
  known_mhz_ = mhz < before_mhz ? before_mhz : known_mhz;
  known_ = mhz < before_mhz ? before : known;
}

void LearningPolicy::decide() {
  // Only rarer steps would do. Long rounds have them; on others, ranks of several hosts could not agree.
  if (!biased_ && steps_.count >= kFirst && steps_.mean - square_root(steps_.variance_of_mean()) > kSteps * goal()) {
    backoff_ = blocks(learnt_) == kRound ? kShortRounds : kMostBackoff;
    return measure_again();
  }
  const double error = here_.deviation();
  // A clearly negative slowdown is noise, unless it is known well.
  const double least = here_.mean > 0 ? here_.mean : 0;
  if (here_.mean - kRaiseConfidence * error > goal()) return raise();
  slack_.restore();
  if (least + kLowerConfidence * error <= goal()) lower();
}

void LearningPolicy::lower() {
  if (harmless_mhz_ == 0 || wanted_mhz_ < harmless_mhz_) harmless_mhz_ = wanted_mhz_;
  double next = wanted_mhz_ / (1 + (goal() - here_.mean) / steepest());
  if (next < kStep * wanted_mhz_) next = kStep * wanted_mhz_;
  if (next < harmful_mhz_ + NodeState::kToldMhz) {
    // What was harmful once may have been something else.
    if (here_.count >= kPatience) {
      harmful_mhz_ = 0;
    } else {
      next = (wanted_mhz_ + harmful_mhz_) / 2;
    }
  }
  if (next > kWorthIt * wanted_mhz_) return;
  known_mhz_ = wanted_mhz_;
  known_ = here_;
  move(next);
}

void LearningPolicy::raise() {
  harmful_mhz_ = wanted_mhz_;
  if (harmless_mhz_ > wanted_mhz_) return move(harmless_mhz_);
  harmless_mhz_ = 0;  // it costs too much by now
  slack_.halve();     // and perhaps it is not this clock: collectives take longer where any rank's clock is low
  double up = wanted_mhz_ * (1 + kRaise * here_.mean);
  // Where it has begun at the clock of another rank that does other work, its own is high enough.
  const double own = safe(baseline_mhz_);
  if (here_.mean > kAbort * terms_.budget && up > own && own > wanted_mhz_ * (1 + here_.mean / 2)) up = own;
  if (up < kHighest * baseline_mhz_) return move(up);
  measure_again();
}

ClockPolicy::Wanted LearningPolicy::wanted(uint64_t now_ns) {
  SpinGuard guard(lock_);
  Wanted wanted{0, now_ns + kFarNs, 0};
  wants_sample_ = false;
  catch_up();
  const IterationProfile::Run* latest = phase_ != Phase::kUnknown ? profile_.latest() : nullptr;
  if (latest == nullptr || resting_ || !profile_.belongs(latest->sequence)) return wanted;
  const uint64_t running = profile_.iteration_of(latest->sequence);
  wanted.call = latest->call;
  if (phase_ == Phase::kManaging && !reference(running)) {
    const double mhz = wanted_mhz_ / (1 + slack_.stretch()), lowest = kLowestOfAll * baseline_mhz_;
    wanted.mhz = static_cast<uint32_t>(mhz < lowest ? lowest : mhz);
  }
  if (now_ns >= sample_at_ns_) {
    const bool of_baseline = phase_ == Phase::kBaseline;
    const double turns = ++samples_ * kGolden, spread = 0.5 + turns - static_cast<uint32_t>(turns);
    sample_at_ns_ = now_ns + static_cast<uint64_t>(static_cast<double>(of_baseline ? kSampleNs : kWatchNs) * spread);
    asked_ = phase_ == Phase::kManaging && part(running) == Part::kManaged;
    // Without a communication kernel the GPU computes.
    wants_sample_ = !of_baseline || latest->stop_ns != 0;
  }
  wanted.until_ns = sample_at_ns_;
  return wanted;
}

void LearningPolicy::withheld() {
  SpinGuard guard(lock_);
  withheld_ = true;
}

void LearningPolicy::sampled(const Reading& reading) {
  SpinGuard guard(lock_);
  present_ = reading;
  if (phase_ != Phase::kBaseline) {
    if (asked_ && reading.mhz > kHonoured * wanted_mhz_) withheld_ = true;
    return;
  }
  if (next_.count == 0) return;  // what was before may still be felt
  if (baseline_clock_.count == 0) usual_ = reading;
  baseline_clock_.add(static_cast<double>(reading.mhz));
  if (baseline_clock_.count >= kFewest) lowest_baseline_mhz();
}

ClockPolicy::State LearningPolicy::state() {
  SpinGuard guard(lock_);
  State state;
  state.period = profile_.period();
  state.iterations = seen_;
  state.managed = managed_iterations_;
  state.length_ns = static_cast<double>(profile_.length().mean);
  if (phase_ == Phase::kManaging || phase_ == Phase::kAborted) {
    state.clock_mhz = static_cast<uint32_t>(wanted_mhz_);
    state.judged = here_.count > 0;
  }
  if (state.judged) {
    const double most = kInterval * here_.deviation();
    // References that were slower than what was compared with may have been right.
    const double lean = lean_.mean > 0 ? lean_.mean : 0;
    state.slowdown = {here_.mean - lean - most, here_.mean, here_.mean + most};
  }
  return state;
}

}  // namespace powerccl
