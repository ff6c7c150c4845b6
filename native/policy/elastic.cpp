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

void Elastic::rest() {
  SpinGuard guard(lock_);
  resting_ = true;
}

Elastic::Kind Elastic::kind(uint64_t iteration) const {
  if (block_ == 0) return Kind::kEdge;
  const uint32_t at = place(iteration), edge = block_ / kEdge;
  if (at < block_) return at >= block_ / 2 && at < block_ - edge ? Kind::kReference : Kind::kEdge;
  return at >= block_ + edge && at < kStretches * block_ - edge ? Kind::kManaged : Kind::kEdge;
}

void Elastic::restart() {
  generation_ = timetable_.generation();
  before_first_ = timetable_.before();
  before_ = managed_ = behind_ = Stretch();
  first_ = Mean();
  here_ = Slowdown();
  wanted_mhz_ = harmless_mhz_ = harmful_mhz_ = 0;
  natural_ = Mean();
  rest_ = kRest;
  misled_ = false;
  learnt_ = 0;
  block_ = 0;
}

void Elastic::catch_up() {
  if (!timetable_.settle()) {
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
    timetable_.learn(learnt_, reference(learnt_));
    if (begun_ns_ == 0) begun_ns_ = start_ns;
    const auto length = static_cast<double>(timetable_.start_of(learnt_ + 1) - start_ns);
    ++seen_;
    if (block_ == 0) {
      first_.add(length);
      if (first_.count < kFirst || first_.count * first_.mean < kFirstNs) continue;
      for (block_ = kFewest; block_ < kMost && block_ * first_.mean < kReferenceNs;) block_ *= 2;
      continue;
    }
    if (!reference(learnt_) && rest_ == 0) ++managed_iterations_;
    const Kind its = kind(learnt_);
    Mean& kept = its == Kind::kManaged ? managed_.length : behind_.length;
    if (its != Kind::kEdge && (kept.count < 3 || length < kOutlier * kept.mean)) kept.add(length);
    if (place(learnt_) + 1 == block_ - block_ / kEdge) judge();
  }
}

// A reference stretch is over: what was managed before it lies between two of them.
void Elastic::judge() {
  const Stretch before = before_, behind = behind_, between = managed_;
  before_ = behind_;
  managed_ = behind_ = Stretch();
  if (timetable_.start_of(learnt_) < begun_ns_ + kWarmNs || between.length.count < 2) return;
  if (rest_ > 0) {
    if (--rest_ == 0) rested(between);
    return;
  }
  if (terms_.dry) return;
  const double natural = natural_.mean, unlike = between.length.mean / natural - 1;
  const double error = square_root(between.length.variance_of_mean() + natural_.variance_of_mean()) / natural;
  if (!misled_ && unlike - 2 * error > kByFar * terms_.budget) {
    // Either the job has changed, or what is left alone for so short a time is no example.
    rest_ = kRest;
    return;
  }
  if (misled_) {
    here_.learn(unlike, error * error + kKnown * kKnown);
  } else if (before.length.count > 1 && behind.length.count > 1) {
    const double usual = (before.length.mean + behind.length.mean) / 2;
    const double apart = (behind.length.mean - before.length.mean) / usual;
    const double variance = (between.length.variance_of_mean() +
                             (before.length.variance_of_mean() + behind.length.variance_of_mean()) / 4) /
                            (usual * usual);
    here_.learn(between.length.mean / usual - 1, variance + apart * apart / 16 + kKnown * kKnown);
  }
  choose();
}

// Nothing was managed for a while: how long iterations take by themselves.
void Elastic::rested(const Stretch& alone) {
  if (natural_.count > 0 && alone.length.mean < natural_.mean * (1 + terms_.budget)) misled_ = true;
  natural_ = alone.length;
  harmless_mhz_ = harmful_mhz_ = 0;
  if (alone.clock.count < 2) {
    rest_ = 1;
    return;
  }
  // No kind of time follows the clock more than fully. A governor that swings goes on swinging below a limit that is in
  // its way now and then only.
  natural_mhz_ = known_mhz_ = alone.clock.mean;
  known_ = {1, 0, kKnown * kKnown};
  const double safe = natural_mhz_ / (1 + goal()), calmest = kCalmest * natural_mhz_;
  const double calm = natural_mhz_ - (misled_ ? 0 : alone.clock.deviation());
  move(safe < calm ? safe : calm > calmest ? calm : calmest);
}

void Elastic::move(double mhz) {
  const double lowest = kLowest * natural_mhz_;
  wanted_mhz_ = mhz < lowest ? lowest : mhz > natural_mhz_ ? natural_mhz_ : mhz;
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
  const double error = here_.deviation(), most = goal();
  if (here_.mean + kConfidence * error <= most) {
    if (harmless_mhz_ == 0 || wanted_mhz_ < harmless_mhz_) harmless_mhz_ = wanted_mhz_;
    double next = wanted_mhz_ / (1 + (most - here_.mean) / steepest());
    if (next < kStep * wanted_mhz_) next = kStep * wanted_mhz_;
    if (next <= harmful_mhz_) next = (wanted_mhz_ + harmful_mhz_) / 2;
    if (next < kWorthIt * wanted_mhz_) {
      known_mhz_ = wanted_mhz_;
      known_ = here_;
      move(next);
    }
  } else if (here_.mean - kConfidence * error > most) {
    harmful_mhz_ = wanted_mhz_;
    if (harmless_mhz_ > wanted_mhz_) {
      move(harmless_mhz_);
    } else {  // what was harmless is no longer
      harmless_mhz_ = 0;
      move(wanted_mhz_ * (1 + here_.mean));
    }
  }
}

ClockPolicy::Wanted Elastic::wanted(uint64_t now_ns) {
  SpinGuard guard(lock_);
  Wanted wanted{0, now_ns + kFarNs, 0};
  wants_sample_ = false;
  catch_up();
  const Timetable::Run* latest = block_ != 0 ? timetable_.latest() : nullptr;
  if (latest == nullptr || resting_ || !timetable_.belongs(latest->sequence)) return wanted;
  const uint64_t running = timetable_.iteration_of(latest->sequence);
  wanted.call = latest->call;
  if (!reference(running) && rest_ == 0 && wanted_mhz_ != 0) wanted.mhz = static_cast<uint32_t>(wanted_mhz_);
  if (rest_ == 0) return wanted;
  // Where no kernel of the library runs, computation has the GPU.
  wants_sample_ = kind(running) == Kind::kManaged && latest->stop_ns != 0;
  wanted.until_ns = now_ns + kSampleNs;
  return wanted;
}

void Elastic::sampled(uint32_t mhz) {
  SpinGuard guard(lock_);
  managed_.clock.add(static_cast<double>(mhz));
}

ClockPolicy::State Elastic::state() {
  SpinGuard guard(lock_);
  State state;
  state.period = timetable_.period();
  state.iterations = seen_;
  state.managed = managed_iterations_;
  state.length_ns = static_cast<double>(timetable_.length().mean);
  state.clock_mhz = static_cast<uint32_t>(wanted_mhz_);
  state.clocks_tried = wanted_mhz_ != 0 ? 1 : 0;
  state.judged = here_.count > 0;
  if (state.judged) {
    const double most = kInterval * here_.deviation();
    state.slowdown = {here_.mean - most, here_.mean, here_.mean + most};
  }
  return state;
}

}  // namespace powerccl
