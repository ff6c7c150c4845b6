// SPDX-License-Identifier: Apache-2.0
#include "policy/iteration_profile.h"

namespace powerccl {
namespace {

double between(uint64_t earlier_ns, uint64_t later_ns) {
  return static_cast<double>(static_cast<int64_t>(later_ns - earlier_ns));
}
double magnitude(double value) {
  return value < 0 ? -value : value;
}

}  // namespace

uint64_t IterationProfile::called(uint64_t call, uint32_t kind) {
  const uint64_t sequence = detector_.called(kind);
  Run& run = runs_[sequence % kRuns];
  run = {};
  run.call = call;
  run.sequence = sequence;
  sequence_of_[call % kRuns] = sequence;
  return sequence;
}

IterationProfile::Run* IterationProfile::find(uint64_t call) {
  const uint64_t sequence = sequence_of_[call % kRuns];
  Run& run = runs_[sequence % kRuns];
  return sequence != 0 && run.call == call ? &run : nullptr;
}

bool IterationProfile::started(uint64_t call, uint64_t start_ns) {
  Run* run = find(call);
  if (run == nullptr) return false;
  run->start_ns = start_ns;
  if (latest_ == 0 || start_ns >= runs_[latest_ % kRuns].start_ns) latest_ = run->sequence;
  return true;
}

bool IterationProfile::stopped(uint64_t call, uint64_t stop_ns) {
  Run* run = find(call);
  if (run == nullptr) return false;
  run->stop_ns = stop_ns;
  return true;
}

bool IterationProfile::waited(uint64_t call, uint64_t stall_ns) {
  Run* run = find(call);
  if (run == nullptr) return false;
  // Of several streams that wait for it, the last to stall leaves it exposed.
  if (stall_ns > run->stall_ns) run->stall_ns = stall_ns;
  return true;
}

const IterationProfile::Run& IterationProfile::run(uint64_t iteration, uint32_t position) const {
  const uint64_t sequence = origin_ + iteration * period_ + position;
  const Run& run = runs_[sequence % kRuns];
  return run.sequence == sequence ? run : no_run_;
}

// How much intervals between kernels differ from those `lag` calls before, as a share of their length.
double IterationProfile::irregularity(uint64_t from, uint64_t to, uint32_t lag) const {
  double differences = 0, lengths = 0;
  uint64_t previous = 0;
  for (uint64_t sequence = from + lag; sequence <= to; ++sequence) {
    const Run& run = runs_[sequence % kRuns];
    const Run& before = runs_[(sequence - lag) % kRuns];
    if (run.start_ns == 0 || before.start_ns == 0) continue;
    if (previous != 0) {
      const double interval = between(runs_[previous % kRuns].start_ns, run.start_ns);
      const double then = between(runs_[(previous - lag) % kRuns].start_ns, before.start_ns);
      differences += magnitude(interval - then);
      lengths += magnitude(interval);
    }
    previous = sequence;
  }
  return lengths > 0 ? differences / lengths : 1;
}

bool IterationProfile::settle() {
  const uint32_t base = detector_.period();
  if (settled()) {
    // A burst of equal calls may have been taken for iterations, which never shows in the calls.
    if (latest_ >= look_again_) reconsider(base);
    return true;
  }
  period_ = 0;
  // Checked at most one time a base period: it costs some microseconds.
  if (base == 0 || latest_ == 0 || latest_ < looked_at_ + base) return false;
  looked_at_ = latest_;
  double least = 1;
  tried_ = 0;
  uint32_t lag = regular(base, &least, &tried_);
  if (lag == 0) lag = shortest(base, least, tried_);
  if (lag != 0) begin(agreed(base, lag), latest_);
  return lag != 0;
}

// Nothing repeats exactly: after enough of it the shortest of what repeats best. 0: there is not enough.
uint32_t IterationProfile::shortest(uint32_t base, double least, uint32_t most) const {
  const uint64_t from = first_of(base), available = latest_ > from ? latest_ - from : 0;  // hosts run ahead
  const uint64_t began_ns = runs_[from % kRuns].start_ns;
  const bool takes_long = began_ns != 0 && between(began_ns, runs_[latest_ % kRuns].start_ns) > kLongNs;
  const uint64_t iterations = base >= kFewKinds || takes_long ? 16 : 48;
  if (available < iterations * uint64_t{base} && available < kRuns / 4) return 0;
  // All ranks agree on the calls. By times each would find another multiple: generated tokens take ever longer.
  if (base >= kFewKinds) return base;
  for (uint32_t multiple = 1; multiple <= most; ++multiple) {
    if (irregularity(from, latest_, multiple * base) <= kAsRegular * least) return multiple * base;
  }
  return 0;
}

// From which call on what is kept repeats.
uint64_t IterationProfile::first_of(uint32_t base) const {
  const uint64_t repeating = detector_.since() > 2 * uint64_t{base} ? detector_.since() - 2 * uint64_t{base} : 1;
  const uint64_t kept = latest_ > kRuns / 2 ? latest_ - kRuns / 2 : 1;
  return repeating > kept ? repeating : kept;
}

// Equal calls can still be different places of an iteration: four equal buckets, of which only the last is exposed. So
// the calls' period is multiplied until the times repeat, too. 0: they do not. `least`: the least irregularity;
// `most`: the multiples there was enough for.
uint32_t IterationProfile::regular(uint32_t base, double* least, uint32_t* most) const {
  const uint64_t from = first_of(base), available = latest_ > from ? latest_ - from : 0;  // hosts run ahead
  double irregular[kMostMultiple + 1] = {};
  for (uint32_t multiple = 1; multiple <= kMostMultiple; ++multiple) {
    const uint64_t lag = uint64_t{multiple} * base;
    // Where iterations differ by themselves two in a row are soon like two others by chance.
    const uint64_t needed = (multiple > 1 && base >= kFewKinds ? 6 : 3) * lag;
    if (lag > kLongest / 2 || available < needed || available < kFewest) break;
    *most = multiple;
    irregular[multiple] = irregularity(from, latest_, static_cast<uint32_t>(lag));
    if (irregular[multiple] < *least) *least = irregular[multiple];
    // Where many calls differ they tell iterations. Of a few that are alike, layers look like iterations as well.
    if (base >= kFewKinds && irregular[multiple] <= kRegular) break;
  }
  if (*least > kRegular) return 0;
  // What is hardly less regular and shorter is the iteration: of several, one is better by chance.
  const double enough = kAsRegular * (*least > kExact ? *least : kExact);
  uint32_t shortest = 1;
  while (irregular[shortest] > enough) ++shortest;
  return shortest * base;
}

void IterationProfile::reconsider(uint32_t base) {
  look_again_ = latest_ + (period_ < 8 ? 64 : 8 * uint64_t{period_});
  const bool tried_all = base >= kFewKinds || tried_ == kMostMultiple;
  const bool regular_enough = tried_all && irregularity(first_of(base), latest_, period_) <= kRegular;
  if (regular_enough && agreed(base, period_) == period_) return;
  double least = 1;
  tried_ = 0;
  uint32_t lag = regular(base, &least, &tried_);
  if (lag == 0) {
    // What repeated by chance at first is found out: several iterations are one by one from then on.
    const uint32_t one = shortest(base, least, tried_);
    if (one != 0 && period_ % one == 0) lag = one;
  }
  lag = agreed(base, lag == 0 ? period_ : lag);
  if (lag != period_ || begins_unseen()) begin(lag, latest_);
}

// In how many of the last iterations that are kept the kernel at this one's place was timed.
uint32_t IterationProfile::timed(uint64_t sequence) const {
  const uint64_t from = first_of(detector_.period()), kept = latest_ > from ? latest_ - from : 0;
  uint32_t count = 0;
  for (uint64_t back = 0; back < kept - kept % period_ && back < sequence; back += period_) {
    const Run& run = runs_[(sequence - back) % kRuns];
    if (run.sequence == sequence - back && run.start_ns != 0) ++count;
  }
  return count;
}

// The iteration begins with the kernel that comes after the longest time without one. Only kernels that are timed each
// time count, because NCCL reports short kernels only now and then.
void IterationProfile::begin(uint32_t period, uint64_t last) {
  period_ = period;
  since_ = detector_.since();
  ++generation_;
  look_again_ = last + (period < 8 ? 64 : 8 * uint64_t{period});
  double longest = -1;
  uint32_t most = 0;
  for (uint64_t sequence = last - period + 1; sequence <= last; ++sequence) {
    const Run& run = runs_[sequence % kRuns];
    const uint32_t times = timed(sequence);
    if (run.start_ns == 0 || times < most) continue;
    uint64_t previous = sequence - 1;
    while (previous > sequence - period && runs_[previous % kRuns].start_ns == 0) --previous;
    const Run& one_before = runs_[previous % kRuns];
    const double before = between(one_before.stop_ns != 0 ? one_before.stop_ns : one_before.start_ns, run.start_ns);
    if (times > most || before > longest) {
      longest = before;
      origin_ = sequence;
    }
    most = times;
  }
  for (uint32_t i = 0; i < period; ++i) positions_[i] = {};
  order_count_ = 0;
  length_ = {};
}

// Whether another place is timed at least twice as often as the one where iterations begin.
bool IterationProfile::begins_unseen() const {
  const uint64_t begun = origin_ + iteration_of(latest_) * period_;
  const uint32_t times = timed(begun);
  for (uint64_t sequence = begun + 1; sequence < begun + period_ && sequence <= latest_; ++sequence) {
    if (timed(sequence) >= 2 * times + 2) return true;
  }
  return false;
}

void IterationProfile::learn(uint64_t iteration) {
  const uint64_t start_ns = start_of(iteration), next_ns = start_of(iteration + 1);
  if (start_ns == 0 || next_ns == 0) return;
  length_.add(between(start_ns, next_ns));
  for (uint32_t i = 0; i < period_; ++i) {
    Position& position = positions_[i];
    const Run& run = this->run(iteration, i);
    if (run.start_ns == 0) continue;
    position.timed = true;
    position.kind = detector_.kind(run.sequence);
    position.offset.add(between(start_ns, run.start_ns));
    if (run.stop_ns != 0) position.duration.add(between(run.start_ns, run.stop_ns));
    // Marks are looked at when the host comes round, which may be after the next iteration has begun.
    if (iteration == 0) continue;
    const Run& before = this->run(iteration - 1, i);
    if (before.stall_ns != 0 && before.start_ns != 0) {
      position.exposed_from.add(between(before.start_ns, before.stall_ns));
    }
  }
  sort();
}

void IterationProfile::sort() {
  order_count_ = 0;
  for (uint32_t i = 0; i < period_; ++i) {
    if (!positions_[i].timed) continue;
    uint32_t at = order_count_++;
    // Calls mostly run in the order they are made in, so that little is moved.
    while (at > 0 && positions_[order_[at - 1]].offset.mean > positions_[i].offset.mean) {
      order_[at] = order_[at - 1];
      --at;
    }
    order_[at] = i;
  }
}

}  // namespace powerccl
