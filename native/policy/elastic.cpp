// SPDX-License-Identifier: Apache-2.0
#include "policy/elastic.h"

#include "policy/square_root.h"

namespace powerccl {

double Elastic::Slowdown::deviation() const {
  return square_root(variance);
}

void Elastic::Slowdown::learn(double longer, double its_variance) {
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

void Elastic::begin(const Terms& terms) {
  SpinGuard guard(lock_);
  terms_ = terms;
}

void Elastic::called(uint64_t call, uint32_t kind, uint32_t mhz) {
  SpinGuard guard(lock_);
  resting_ = false;
  timetable_.called(call, kind, mhz);
}

void Elastic::graph_called(uint64_t call, uint32_t kind) {
  called(call, kind, 0);
  SpinGuard guard(lock_);
  graphs_ = true;
}

bool Elastic::started(uint64_t call, uint64_t start_ns) {
  SpinGuard guard(lock_);
  if (!timetable_.started(call, start_ns)) return false;
  if (!timetable_.settled()) return true;
  const uint64_t sequence = timetable_.latest()->sequence;
  return timetable_.belongs(sequence) && timetable_.position_of(sequence) == 0;
}

bool Elastic::stopped(uint64_t call, uint64_t stop_ns) {
  SpinGuard guard(lock_);
  timetable_.stopped(call, stop_ns);
  return false;
}

void Elastic::waited(uint64_t call, uint64_t stall_ns) {
  SpinGuard guard(lock_);
  timetable_.waited(call, stall_ns);
}

void Elastic::rest() {
  SpinGuard guard(lock_);
  resting_ = true;
}

// A job's first rounds are short, for there is much to learn.
uint32_t Elastic::blocks(uint64_t iteration) const {
  return before_first_ + iteration < uint64_t{kShortRounds} * kRound * block_ ? kRound : kLongRound;
}

uint32_t Elastic::place(uint64_t iteration) const {
  return static_cast<uint32_t>((before_first_ + iteration) % (uint64_t{blocks(iteration)} * block_));
}

Elastic::Part Elastic::part(uint64_t iteration) const {
  const uint32_t at = place(iteration), edge = block_ / kEdge;
  if (at < block_) return at >= block_ / 2 && at < block_ - edge ? Part::kReference : Part::kEdge;
  return at >= block_ + edge && at < blocks(iteration) * block_ - edge ? Part::kManaged : Part::kEdge;
}

// References take no longer, so the rest may take more than the budget.
double Elastic::goal() const {
  const double managed = misled_ ? 1 : 1 - 1.0 / blocks(learnt_);
  return kPart * terms_.budget / managed;
}

void Elastic::restart() {
  generation_ = timetable_.generation();
  before_first_ = timetable_.before();
  phase_ = Phase::kUnknown;
  first_ = before_ = managed_ = behind_ = whole_ = natural_ = Mean();
  wanted_mhz_ = 0;
  slack_.clear();
  doubted_ = misled_ = graphs_ = false;
  learnt_ = 0;
  block_ = 0;
  patience_ = 1;
}

void Elastic::catch_up() {
  if (!timetable_.settle()) {
    phase_ = Phase::kUnknown;
    block_ = 0;
    return;
  }
  if (generation_ != timetable_.generation()) restart();
  const Timetable::Run* latest = timetable_.latest();
  if (latest == nullptr || !timetable_.belongs(latest->sequence)) return;
  const uint64_t begun = timetable_.iteration_of(latest->sequence);
  if (begun > learnt_ + 1 && !timetable_.complete(learnt_)) learnt_ = begun - 1;
  for (; learnt_ < begun && timetable_.complete(learnt_); ++learnt_) {
    const uint64_t start_ns = timetable_.start_of(learnt_);
    if (start_ns == 0) continue;
    timetable_.learn(learnt_, block_ == 0 || reference(learnt_));
    if (begun_ns_ == 0) begun_ns_ = start_ns;
    const auto length_ns = static_cast<double>(timetable_.start_of(learnt_ + 1) - start_ns);
    ++seen_;
    block_ == 0 ? find_block(length_ns) : take(length_ns);
  }
}

void Elastic::find_block(double length_ns) {
  first_.add(length_ns);
  if (first_.count < kFewest || first_.count * first_.mean < kFirstNs) return;
  for (block_ = kFewest; block_ < kMost && block_ * first_.mean < kBlockNs;) block_ *= 2;
  watch(1);
}

void Elastic::watch(uint32_t rounds) {
  phase_ = Phase::kWatching;
  watched_ = rounds;
  wanted_mhz_ = 0;
  natural_clock_ = Mean();
}

void Elastic::take(double length_ns) {
  const Part its = part(learnt_);
  if (phase_ == Phase::kManaging && !reference(learnt_)) ++managed_iterations_;
  if (whole_.count < 3 || length_ns < kOutlier * whole_.mean) {
    whole_.add(length_ns);
    if (its != Part::kEdge) (its == Part::kManaged ? managed_ : behind_).add(length_ns);
  } else if (++outliers_ % kFewest == 0) {
    whole_ = managed_ = Mean();  // so many are no checkpoints: this is what iterations take now
  }
  if (phase_ == Phase::kManaging && !terms_.dry) {
    // How long a graph takes says nothing about waiting.
    if (terms_.joint != nullptr && !graphs_) take_up_slack(its);
    if (its == Part::kManaged && managed_.count % kFewest == 0) break_off();
  }
  if (place(learnt_) + 1 == block_ - block_ / kEdge) end_round();
}

void Elastic::take_up_slack(Part its) {
  if (its != Part::kManaged) return slack_.look_anew();
  slack_.iteration(timetable_, learnt_, terms_.joint);
  if (place(learnt_) % (block_ / 2) == 0) slack_.adjust(timetable_);
}

// Iterations that take longer by far are not waited out.
void Elastic::break_off() {
  const Mean& usual = misled_ ? natural_ : before_;
  if (usual.count < 2 || managed_.count < 2) return;
  const double variance = (managed_.variance_of_mean() + usual.variance_of_mean()) / (usual.mean * usual.mean);
  const double longer = managed_.mean / usual.mean - 1;
  if (longer - 2 * square_root(variance) < kByFar * terms_.budget) return;
  phase_ = Phase::kBrokenOff;
  here_ = {1, longer, variance};
  raise();
}

// A reference is over: what was managed before it lies between two of them.
void Elastic::end_round() {
  const Mean before = before_, between = managed_, behind = behind_, whole = whole_;
  before_ = behind_;
  managed_ = behind_ = whole_ = Mean();
  outliers_ = 0;
  if (timetable_.start_of(learnt_) < begun_ns_ + kWarmNs || between.count < 2) return;
  switch (phase_) {
    case Phase::kUnknown:
      return;
    case Phase::kWatching:
      if (--watched_ == 0) return begin_to_manage(between);
      natural_clock_ = Mean();  // the last round counts
      return;
    case Phase::kBrokenOff:
      phase_ = Phase::kManaging;
      return;
    case Phase::kManaging:
      if (!terms_.dry) judge(before, between, behind, whole);
  }
}

void Elastic::begin_to_manage(const Mean& alone) {
  if (natural_clock_.count < 2) return watch(1);
  if (doubted_) misled_ = alone.mean < natural_.mean * (1 + terms_.budget);
  doubted_ = false;
  natural_ = alone;
  natural_mhz_ = natural_clock_.mean;
  phase_ = Phase::kManaging;
  harmless_mhz_ = harmful_mhz_ = 0;
  known_mhz_ = natural_mhz_;
  known_ = {1, 0, kKnown * kKnown};
  // No kind of time follows the clock more than fully.
  move(natural_mhz_ / (1 + goal()));
}

void Elastic::judge(const Mean& before, const Mean& between, const Mean& behind, const Mean& whole) {
  // References may cost time by themselves: what limits power takes a while to get used to each change.
  const Mean& its = misled_ ? whole : between;
  const double unlike = its.mean / natural_.mean - 1;
  const double error = square_root(its.variance_of_mean() + natural_.variance_of_mean()) / natural_.mean;
  if (misled_) {
    here_.learn(unlike, error * error + kKnown * kKnown);
  } else if (before.count > 1 && behind.count > 1) {
    double usual = (before.mean + behind.mean) / 2;
    // A reference may still feel what was managed before it; a job that takes longer by itself does so by more.
    if (natural_.mean < usual && usual < natural_.mean * (1 + terms_.budget)) usual = natural_.mean;
    const double longer = between.mean / usual - 1;
    const double apart = (behind.mean - before.mean) / usual;
    const double variance =
        (between.variance_of_mean() + (before.variance_of_mean() + behind.variance_of_mean()) / 4) / (usual * usual);
    const double its_variance = variance + apart * apart / 16 + kKnown * kKnown;
    // Either the job has changed, or references are no example of it: nothing is quicker at a lower clock.
    const bool changed = unlike - 2 * error > kByFar * terms_.budget && unlike - longer > terms_.budget;
    if (changed || longer + 2 * square_root(its_variance) < -terms_.budget) {
      doubted_ = true;
      if (patience_ < kDoubtful) patience_ = kDoubtful;
      return watch(patience_);
    }
    here_.learn(longer, its_variance);
  }
  choose();
}

void Elastic::move(double mhz) {
  const double lowest = kLowest * natural_mhz_;
  wanted_mhz_ = mhz < lowest ? lowest : mhz;
  here_ = Slowdown();
}

// By how much time may follow the clock from here on, as far as the last two clocks tell; never more than fully.
double Elastic::steepest() const {
  const double lever = known_mhz_ / wanted_mhz_ - 1;
  if (lever <= 0) return 1;
  const double error = square_root(here_.variance + known_.variance) / lever;
  const double most = (here_.mean - known_.mean) / lever + 2 * error;
  return most > 1 ? 1 : most < kFlattest ? kFlattest : most;
}

// Down while that is surely harmless, back where it is not, and from both sides towards what lies between.
void Elastic::choose() {
  if (here_.count == 0) return;
  const double error = kConfidence * here_.deviation();
  if (here_.mean + error <= goal()) {
    lower();
  } else if (here_.mean - error > goal()) {
    raise();
  }
}

void Elastic::lower() {
  if (harmless_mhz_ == 0 || wanted_mhz_ < harmless_mhz_) harmless_mhz_ = wanted_mhz_;
  double next = wanted_mhz_ / (1 + (goal() - here_.mean) / steepest());
  if (next < kStep * wanted_mhz_) next = kStep * wanted_mhz_;
  if (next <= harmful_mhz_) next = (wanted_mhz_ + harmful_mhz_) / 2;
  if (next > kWorthIt * wanted_mhz_) return;
  known_mhz_ = wanted_mhz_;
  known_ = here_;
  move(next);
}

void Elastic::raise() {
  harmful_mhz_ = wanted_mhz_;
  slack_.give_back();
  if (harmless_mhz_ > wanted_mhz_) return move(harmless_mhz_);
  harmless_mhz_ = 0;  // what was harmless is no longer
  const double up = wanted_mhz_ * (1 + kHaste * here_.mean);
  if (up < kHighest * natural_mhz_) return move(up);
  watch(patience_ + 1);  // the present round is no example
  if (patience_ < kMostPatience) patience_ *= 2;
}

ClockPolicy::Wanted Elastic::wanted(uint64_t now_ns) {
  SpinGuard guard(lock_);
  Wanted wanted{0, now_ns + kFarNs, 0};
  wants_sample_ = false;
  catch_up();
  const Timetable::Run* latest = phase_ != Phase::kUnknown ? timetable_.latest() : nullptr;
  if (latest == nullptr || resting_ || !timetable_.belongs(latest->sequence)) return wanted;
  const uint64_t running = timetable_.iteration_of(latest->sequence);
  wanted.call = latest->call;
  if (phase_ == Phase::kManaging && !reference(running)) {
    const double mhz = wanted_mhz_ / (1 + slack_.stretch()), lowest = kLowest * natural_mhz_;
    wanted.mhz = static_cast<uint32_t>(mhz < lowest ? lowest : mhz);
  }
  if (phase_ != Phase::kWatching) return wanted;
  if (now_ns >= sample_at_ns_) {
    const double turns = ++samples_ * kGolden;
    sample_at_ns_ = now_ns + static_cast<uint64_t>(kSampleNs * (0.5 + turns - static_cast<uint32_t>(turns)));
    // Where no kernel of the library runs, computation has the GPU.
    wants_sample_ = latest->stop_ns != 0;
  }
  wanted.until_ns = sample_at_ns_;
  return wanted;
}

void Elastic::sampled(uint32_t mhz) {
  SpinGuard guard(lock_);
  natural_clock_.add(static_cast<double>(mhz));
}

ClockPolicy::State Elastic::state() {
  SpinGuard guard(lock_);
  State state;
  state.period = timetable_.period();
  state.iterations = seen_;
  state.managed = managed_iterations_;
  state.length_ns = static_cast<double>(timetable_.length().mean);
  if (phase_ == Phase::kManaging || phase_ == Phase::kBrokenOff) {
    state.clock_mhz = static_cast<uint32_t>(wanted_mhz_);
    state.clocks_tried = 1;
    state.judged = here_.count > 0;
  }
  if (state.judged) {
    const double most = kInterval * here_.deviation();
    state.slowdown = {here_.mean - most, here_.mean, here_.mean + most};
  }
  return state;
}

}  // namespace powerccl
