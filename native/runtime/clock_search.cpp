// SPDX-License-Identifier: Apache-2.0
#include "runtime/clock_search.h"

namespace powerccl {

void ClockSearch::Sum::add(double value) {
  ++count;
  const double off = value - mean;
  mean += off / count;
  squares += off * (value - mean);
}

void ClockSearch::begin(const Terms& terms, uint64_t from) {
  *this = ClockSearch();
  terms_ = terms;
  from_ = from;
  slow_mhz_ = terms.least_mhz > terms.step_mhz ? terms.least_mhz - terms.step_mhz : 0;
  best_mhz_ = 0;
  next(0.5 * (terms.most_mhz + terms.least_mhz));
}

uint32_t ClockSearch::clock(uint64_t iteration) const {
  if (done_) return best_mhz_;
  if (iteration < from_) return 0;
  return (iteration - from_) % (kReference + kTry) < kReference || given_up_ ? 0 : candidate_mhz_;
}

void ClockSearch::iteration(uint64_t iteration, uint64_t duration_ns, double computing) {
  if (done_ || iteration < from_) return;
  const uint32_t place = static_cast<uint32_t>((iteration - from_) % (kReference + kTry));
  const double duration = static_cast<double>(duration_ns);
  if (place < kReference) {
    if (place == 0) {
      // The block before last is another temperature's.
      before_ = reference_;
      reference_ = {};
      given_up_ = false;
    }
    if (place >= kUnused) reference_.add(duration);
    return;
  }
  if (given_up_) return;
  if (place == kReference) with_ = {};
  if (place >= kReference + kUnused) with_.add(duration);
  const bool hopeless = with_.count == 2 && reference_.count > 0 && with_.mean > (1 + kFarTooSlow) * reference_.mean;
  if (!hopeless && place + 1 < kReference + kTry) return;
  judge(computing);
  given_up_ = true;
}

void ClockSearch::judge(double computing) {
  if (with_.count < 2 || reference_.count < 2) return;
  double usual = reference_.mean, error_squared = reference_.error_squared();
  if (before_.count > 0) {
    usual = 0.5 * (usual + before_.mean);
    error_squared = 0.25 * (error_squared + before_.error_squared());
  }
  const double slowdown = with_.mean / usual - 1;
  const double chance_squared = (error_squared + with_.error_squared()) / (usual * usual);
  ++tried_;
  const double wish = terms_.slowdown;
  if (slowdown <= wish) {
    best_mhz_ = candidate_mhz_;
  } else {
    slow_mhz_ = candidate_mhz_;
  }
  // Computation of that share behind by so much tells at which clock it runs by itself; without a sign of that, half
  // way down.
  const double candidate = candidate_mhz_;
  if (computing > 0.02 && slowdown > 0 && slowdown * slowdown > 4 * chance_squared) {
    const double natural = candidate * (1 + slowdown / computing);
    next(natural / (1 + 0.8 * wish / computing));
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
  uint32_t candidate = static_cast<uint32_t>(wish_mhz / step + 0.5) * step;
  if (candidate >= high) candidate = high - step;
  if (candidate <= slow_mhz_) candidate = slow_mhz_ + step;
  candidate_mhz_ = candidate;
}

void ClockSearch::raise() {
  done_ = true;
  const uint32_t higher = best_mhz_ + best_mhz_ / 20;
  best_mhz_ = best_mhz_ == 0 || higher + terms_.step_mhz >= terms_.most_mhz ? 0 : higher / terms_.step_mhz * terms_.step_mhz;
}

}  // namespace powerccl
