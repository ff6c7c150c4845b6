// SPDX-License-Identifier: Apache-2.0
#include "policy/clock_search.h"

namespace powerccl {

void ClockSearch::Sum::add(double value) {
  ++count;
  ++present_.count;
  present_.total += value;
  present_.squares += value * value;
  if (value > longest_) longest_ = value;
  if (present_.count < group || group < 2) return;
  whole_.count += present_.count - 1;
  whole_.total += present_.total - longest_;
  whole_.squares += present_.squares - longest_ * longest_;
  present_ = {};
  longest_ = 0;
}

ClockSearch::Sum::Part ClockSearch::Sum::kept() const {
  if (whole_.count > 0 || present_.count < 2) return whole_.count > 0 ? whole_ : present_;
  return {present_.count - 1, present_.total - longest_, present_.squares - longest_ * longest_};
}

double ClockSearch::Sum::mean() const {
  const Part part = kept();
  return part.count > 0 ? part.total / part.count : 0;
}

double ClockSearch::Sum::error_squared() const {
  const Part part = kept();
  if (part.count < 2) return 0;
  const double middle = mean(), spread = part.squares / part.count - middle * middle;
  return spread > 0 ? spread / (part.count - 1) : 0;
}

void ClockSearch::Seen::begin(uint32_t group) {
  whole = steady = {};
  whole.group = steady.group = group;
}

void ClockSearch::Seen::add(uint64_t duration_ns, double steady_ns) {
  whole.add(static_cast<double>(duration_ns));
  if (steady_ns > 0) steady.add(steady_ns);
}

ClockSearch::Estimate ClockSearch::compare(const Sum& with, const Sum& reference, double weight) {
  const double usual = reference.mean(), factor = weight * weight / (usual * usual);
  return {weight * (with.mean() / usual - 1), factor * with.error_squared(), factor * reference.error_squared()};
}

ClockSearch::Estimate ClockSearch::estimate() const {
  const Estimate whole = compare(with_.whole, reference_.whole, 1);
  // The length of iterations says what counts. The steady part is that of one GPU, which may be one that waits for
  // others, so it is only asked where the length says nothing.
  if (whole.chance + whole.reference_chance <= terms_.slowdown * terms_.slowdown) return whole;
  if (terms_.weight <= 0 || with_.steady.count < 2 || reference_.steady.count < 2) return whole;
  Estimate steady = compare(with_.steady, reference_.steady, terms_.weight);
  const double unlike = kUnlike * steady.slowdown;
  steady.chance += unlike * unlike;
  return steady.chance + steady.reference_chance < whole.chance + whole.reference_chance ? steady : whole;
}

void ClockSearch::begin(const Terms& terms, uint64_t from) {
  *this = ClockSearch();
  terms_ = terms;
  from_ = from;
  slow_mhz_ = terms.least_mhz > terms.step_mhz ? terms.least_mhz - terms.step_mhz : 0;
  best_mhz_ = 0;
  reference_.begin(counted());
  windows_.begin(kSettled);
  if (terms.first_mhz != 0 && terms_.most_mhz > kAbove * terms.first_mhz) {
    terms_.most_mhz = static_cast<uint32_t>(kAbove * terms.first_mhz);
  }
  const double unknown = 0.5 * (terms.most_mhz + terms.least_mhz);
  next(terms.guess_mhz != 0 ? terms.guess_mhz : terms.first_mhz != 0 ? terms.first_mhz : unknown);
}

uint32_t ClockSearch::clock(uint64_t iteration) const {
  if (done_) {
    const bool lower = best_mhz_ != 0 && iteration / terms_.block % kQuarters < quarters_;
    return lower ? best_mhz_ - terms_.step_mhz : best_mhz_;
  }
  const bool before = iteration < from_ + terms_.reference + terms_.between;
  return before || reference(iteration) ? 0 : candidate_mhz_;
}

void ClockSearch::iteration(uint64_t iteration, uint64_t duration_ns, double computing, double steady_ns) {
  if (done_ || iteration < from_) return;
  const uint64_t since = iteration - from_;
  if (since < terms_.reference) {
    reference_.add(duration_ns, steady_ns);
    if (since + kAhead == terms_.reference) extend_reference();
    return;
  }
  const uint64_t settled = terms_.reference + terms_.between;
  if (since < settled) {
    if (since + kSettled >= settled) windows_.add(duration_ns, 0);
    if (since + 1 < settled || windows_.whole.count < kSettled) return;
    const Estimate found = compare(windows_.whole, reference_.whole, 1);
    const double beyond = found.slowdown - terms_.most;
    windows_too_slow_ = beyond > 0 && beyond * beyond > kClearly * kClearly * (found.chance + found.reference_chance);
    return;
  }
  const uint64_t place = (since - terms_.reference - terms_.between) % terms_.block;
  if (place == 0) {
    with_.begin(counted());
    given_up_ = false;
  }
  if (given_up_) return;
  if (3 * place >= terms_.block) with_.add(duration_ns, steady_ns);
  const bool hopeless = with_.whole.count == 2 && reference_.whole.count > 1 && estimate().slowdown > kFarTooSlow;
  if (!hopeless && place + 1 < terms_.block) return;
  judge(computing);
  given_up_ = !done_ && place + 1 < terms_.block;
}

void ClockSearch::extend_reference() {
  const double error = kWellKnown * terms_.slowdown;
  const Sum &whole = reference_.whole, &steady = reference_.steady;
  const bool steady_known =
      terms_.weight > 0 && steady.count > 1 && compare(steady, steady, terms_.weight).reference_chance <= error * error;
  if (references_ >= kMostReferences || steady_known) return;
  if (compare(whole, whole, 1).reference_chance <= error * error) return;
  terms_.reference += terms_.reference / references_;
  ++references_;
}

void ClockSearch::judge(double computing) {
  if (with_.whole.count < 2 || reference_.whole.count < 2) return;
  const Estimate found = estimate();
  slowdowns_ += found.slowdown;
  chances_ += found.chance;
  ++blocks_;
  const double slowdown = slowdowns_ / blocks_;
  const double chance_squared = chances_ / blocks_ / blocks_ + found.reference_chance;
  const double wish = terms_.slowdown;
  const double off = slowdown - wish, spare = terms_.most - slowdown;
  if (blocks_ < kRepeats && off * off < chance_squared) return;  // not clear
  ++tried_;
  const bool sure = spare > 0 && spare * spare >= kSure * kSure * chance_squared;
  if (slowdown <= wish && sure) {
    best_mhz_ = candidate_mhz_;
  } else {
    slow_mhz_ = candidate_mhz_;
  }
  // Computation of that share behind by so much tells at which clock it runs by itself; without a sign of that, some
  // way down, or half way up.
  const double candidate = candidate_mhz_;
  if (computing > 0.02 && slowdown > 0 && slowdown * slowdown > 4 * chance_squared) {
    const double natural = candidate * (1 + slowdown / computing);
    next(natural / (1 + 0.95 * wish / computing));
  } else if (slowdown <= wish && sure) {
    next(kDown * candidate);
  } else {
    next(0.5 * (slow_mhz_ + (best_mhz_ != 0 ? best_mhz_ : terms_.most_mhz)));
  }
}

// Tries that clock next, or one between what is too slow and what is not; none is left when those are neighbours.
void ClockSearch::next(double wish_mhz) {
  const uint32_t high = best_mhz_ != 0 ? best_mhz_ : terms_.most_mhz;
  const uint32_t step = terms_.step_mhz;
  if (tried_ >= kMostTries || high <= slow_mhz_ + 2 * step) {
    done_ = true;
    return;
  }
  uint32_t candidate = (static_cast<uint32_t>(wish_mhz) + step / 2) / step * step;
  if (candidate >= high) candidate = high - step;
  if (candidate <= slow_mhz_) candidate = slow_mhz_ + step;
  try_clock(candidate);
}

void ClockSearch::try_clock(uint32_t mhz) {
  candidate_mhz_ = mhz;
  slowdowns_ = chances_ = 0;
  blocks_ = 0;
}

// A place between two clocks is had by turns, each for as long as a clock is tried.
void ClockSearch::set_place(uint32_t quarters) {
  const uint32_t steps = (quarters + kQuarters - 1) / kQuarters;
  best_mhz_ = steps * terms_.step_mhz;
  quarters_ = steps * kQuarters - quarters;
}

void ClockSearch::raise(double part) {
  done_ = true;
  if (best_mhz_ == 0) return;
  const uint32_t now = place();
  if (lowered()) {
    too_low_ = now;
    return set_place(now + (lowered_from_ - now + 1) / 2);
  }
  if (part > kMostHigher) part = kMostHigher;
  set_place(now + 1 + (part > 0 ? static_cast<uint32_t>(part * now) : 0));
  if (best_mhz_ + terms_.step_mhz < terms_.most_mhz) return;
  best_mhz_ = quarters_ = 0;
}

bool ClockSearch::lower(double part) {
  if (!done_ || best_mhz_ == 0 || part <= 0) return false;
  if (part > kMostLower) part = kMostLower;
  const uint32_t now = place();
  uint32_t quarters = (static_cast<uint32_t>(2 * part * now) + 1) / 2;
  if (now < too_low_ + quarters + 1) quarters = now > too_low_ ? now - too_low_ - 1 : 0;
  const uint32_t least = terms_.least_mhz > terms_.step_mhz ? terms_.least_mhz : terms_.step_mhz;
  if (quarters == 0 || now < least / terms_.step_mhz * kQuarters + quarters) return false;
  lowered_from_ = now;
  set_place(now - quarters);
  return true;
}

}  // namespace powerccl
