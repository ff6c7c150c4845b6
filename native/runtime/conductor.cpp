// SPDX-License-Identifier: Apache-2.0
#include "runtime/conductor.h"

namespace powerccl {
namespace {

double between(uint64_t earlier_ns, uint64_t later_ns) {
  return static_cast<double>(static_cast<int64_t>(later_ns - earlier_ns));
}
uint64_t at(double base_ns, double offset) {
  const double time = base_ns + offset;
  return time > 0 ? static_cast<uint64_t>(time) : 0;
}

}  // namespace

void Conductor::begin(const Terms& terms) {
  SpinGuard guard(lock_);
  terms_ = terms;
  times_.call.add(static_cast<double>(terms.call_ns));
  times_.transition.add(static_cast<double>(terms.transition_ns));
  times_.measured = terms.dry;
}

void Conductor::called(uint64_t call, uint32_t kind, uint32_t mhz) {
  SpinGuard guard(lock_);
  resting_ = false;
  timetable_.called(call, kind, mhz);
}

void Conductor::rest() {
  SpinGuard guard(lock_);
  resting_ = true;
}

bool Conductor::started(uint64_t call, uint64_t start_ns) {
  SpinGuard guard(lock_);
  return timetable_.started(call, start_ns);
}

bool Conductor::stopped(uint64_t call, uint64_t stop_ns) {
  SpinGuard guard(lock_);
  return timetable_.stopped(call, stop_ns) && acting_;
}

void Conductor::waited(uint64_t call, uint64_t stall_ns) {
  SpinGuard guard(lock_);
  if (timetable_.waited(call, stall_ns)) marked_ = true;
}

// Iterations that are left alone: some to begin with, then a block now and then.
bool Conductor::control(uint64_t iteration) const {
  if (iteration < kReference || iteration < paused_until_) return true;
  if (terms_.search && leads_ && !search_.begun()) return true;
  return (iteration - settled_) % (uint64_t{rarely_} * steady_) >= (uint64_t{rarely_} - 1) * steady_;
}

// Whether an iteration says something about the budget: late in a block, once the GPU has got used to it.
bool Conductor::on_trial(uint64_t iteration) const {
  if (iteration < settled_) return false;
  const uint64_t place = (iteration - settled_) % (uint64_t{rarely_} * steady_);
  const uint64_t managed = (uint64_t{rarely_} - 1) * steady_;
  return place >= managed ? 5 * (place - managed) >= 3 * steady_ : place >= steady_;
}

// What this GPU would do in an iteration if it were for it to say.
Mode Conductor::own_mode(uint64_t iteration) const {
  const bool left_alone = control(iteration) || (search_.begun() && search_.reference(iteration));
  return {left_alone, search_.begun() && !left_alone ? search_.clock(iteration) : 0};
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
  learnt_ = usual_ = 0;
  paused_until_ = agreed_ = 0;
  settled_ = kReference;
  first_ns_ = 0;
  stretch_ = 1;
  stretch_seen_ = 0;
  managed_ = 0;
  rarely_ = kFirst;
  leads_ = terms_.joint == nullptr;
  for (Mode& each : modes_) each = {};
  period_ = timetable_.period();
  margins_ = {};
  trial_ = {};
  search_ = {};
  windows_ = {};
  for (auto& of_parity : deeds_)
    for (Deed& each : of_parity) each = {};
  touched_[0] = touched_[1] = UINT64_MAX;
  acting_ = false;
}

// How much later than usual the job went on behind a window, less what its kernels themselves took longer: then it was
// computation beside them that ran slowly, or computation behind them.
double Conductor::lateness(uint64_t iteration, const Window& window) const {
  const Timetable::Run& first = timetable_.run(iteration, window.first);
  const Timetable::Position& from = timetable_.position(window.first);
  double longer = 0;
  uint32_t after = UINT32_MAX;
  bool inside = false;
  for (uint32_t i = 0; i < timetable_.order_count(); ++i) {
    const uint32_t index = timetable_.order(i);
    if (index == window.first) inside = true;
    if (inside) {
      const Timetable::Run& run = timetable_.run(iteration, index);
      const Timetable::Position& usual = timetable_.position(index);
      if (run.start_ns != 0 && run.stop_ns != 0 && usual.usual_duration.count > 0) {
        longer += between(run.start_ns, run.stop_ns) - static_cast<double>(usual.usual_duration.mean);
      }
    }
    if (index == window.last && inside) {
      after = i + 1;
      break;
    }
  }
  if (after == UINT32_MAX || first.start_ns == 0) return 0;
  uint64_t next_ns = 0;
  double usual = 0;
  if (after < timetable_.order_count()) {
    const uint32_t index = timetable_.order(after);
    next_ns = timetable_.run(iteration, index).start_ns;
    usual = static_cast<double>(timetable_.position(index).usual_offset.mean - from.usual_offset.mean);
  } else {
    next_ns = timetable_.start_of(iteration + 1);
    usual = static_cast<double>(timetable_.usual_length().mean - from.usual_offset.mean);
  }
  if (next_ns == 0) return 0;
  return between(first.start_ns, next_ns) - usual - (longer > 0 ? longer : 0);
}

// Shortens the windows behind which the job came late.
void Conductor::judge(uint64_t iteration) {
  const double length = static_cast<double>(timetable_.length().mean);
  for (uint32_t i = 0; i < windows_.count(); ++i) {
    const Window& window = windows_[i];
    const Deed& done = deed(iteration, i);
    if (done.iteration != iteration || done.low_ns == 0) continue;
    const Timetable::Run& last = timetable_.run(iteration, window.last);
    double risen_late = 0;
    if (last.stop_ns != 0 && done.high_ns != 0) {
      risen_late = between(last.stop_ns, done.high_ns);
      // One iteration that was cut short must not move it for many.
      const double most = 4 * times_.change_ns();
      const double seen = risen_late > most ? most : risen_late < -most ? -most : risen_late;
      margins_.tail[window.last].add(seen + window.tail);
    }
    // Usual is what is at the default clock; computation at another one says nothing about the window.
    if (mode(iteration).mhz != 0) continue;
    double late = lateness(iteration, window);
    if (risen_late > 0) late -= risen_late * kSlower;
    judge_front(window, late, between(done.low_ns, done.high_ns != 0 ? done.high_ns : done.low_ns), length);
  }
}

// Exposed communication makes nothing late, however long the clock was low; computation beside it comes later by half
// of that or more. One iteration tells little about a short window, several do.
void Conductor::judge_front(const Window& window, double late, double low, double length) {
  if (low <= 0) return;
  const uint32_t at = window.first;
  float& front = margins_.front[at];
  margins_.late[at] += static_cast<float>(late);
  margins_.low[at] += static_cast<float>(low);
  const uint32_t seen = ++margins_.seen[at];
  const double late_in_all = static_cast<double>(margins_.late[at]), low_in_all = static_cast<double>(margins_.low[at]);
  const double chance = kLateShare * length * seen;
  // Where marks tell what is exposed it takes more to prove them wrong.
  const bool clear = marked_ ? seen >= 8 : seen >= 4 || (seen >= 2 && late_in_all > 0.3 * low_in_all);
  if (clear && late_in_all > 0.15 * low_in_all && late_in_all > chance) {
    const double mean = late_in_all / seen;
    const double lasts = window.high - window.low;
    // Beside computation for most of it: the window is given up, for now.
    front += static_cast<float>(mean > 0.25 * lasts ? lasts : mean / kSlower);
  } else if (seen < 16) {
    return;
  } else {
    front *= 0.9f;  // what was chance is forgotten in the end
  }
  margins_.late[at] = margins_.low[at] = 0;
  margins_.seen[at] = 0;
}

void Conductor::plan() {
  if (!terms_.windows) return;
  windows_.build(timetable_, margins_, times_, marked_);
}

// Takes iterations into account that have become complete.
void Conductor::catch_up(uint64_t now_ns) {
  if (!timetable_.settle()) {
    if (period_ != 0) restart();
    period_ = 0;
    return;
  }
  if (period_ == 0) restart();
  const Timetable::Run* latest = timetable_.latest();
  if (latest == nullptr || !timetable_.belongs(latest->sequence)) return;
  const uint64_t begun = timetable_.iteration_of(latest->sequence);
  // The calls have run ahead of what was looked at: what is no longer there cannot be learnt from.
  if (begun > learnt_ + 1) learnt_ = begun - 1;
  bool news = false;
  while (learnt_ < begun && timetable_.complete(learnt_)) {
    const uint64_t start_ns = timetable_.start_of(learnt_);
    const bool windowed = touched_[learnt_ & 1] == learnt_;
    const bool touched = windowed || mode(learnt_).mhz != 0;
    timetable_.learn(learnt_, !touched);
    if (first_ns_ == 0) first_ns_ = start_ns;
    if (start_ns != 0) {
      const uint64_t duration_ns = timetable_.start_of(learnt_ + 1) - start_ns;
      if (windowed) judge(learnt_);
      if (touched) ++managed_;
      tell_search(learnt_, duration_ns);
      take_up_slack(learnt_);
      // While clocks are tried, iterations are no example of anything.
      if (leads_ && (!search_.begun() || search_.done()) && on_trial(learnt_)) trial_.iteration(touched, duration_ns);
    }
    ++learnt_;
    news = true;
  }
  agree(begun, now_ns);
  if (!news) return;
  if (learnt_ <= kReference) {
    steady_ = iterations_of(kSteadyNs, 8);
  }
  weigh();
  plan();
}

void Conductor::tell_search(uint64_t iteration, uint64_t duration_ns) {
  if (!terms_.search || !leads_) return;
  if (!search_.begun()) {
    // A job that has just begun runs on what a cool GPU has in store.
    if (iteration < kReference || timetable_.start_of(iteration) - first_ns_ < kWarmNs) return;
    ClockSearch::Terms terms;
    terms.most_mhz = terms_.most_mhz;
    terms.least_mhz = terms_.least_mhz;
    terms.first_mhz = sampled_mhz_;
    terms.slowdown = kPartOfBudget * terms_.budget;
    terms.reference = iterations_of(kReferenceNs, 6);
    terms.between = terms_.windows ? kBetween : 0;
    terms.block = iterations_of(kTryNs, 6);
    search_.begin(terms, iteration + 1);
    return;
  }
  if (search_.done() || control(iteration)) return;
  const double exposed = windows_.covered_ns() + windows_.too_short_ns();
  const double length = static_cast<double>(timetable_.length().mean);
  search_.iteration(iteration, duration_ns, length > exposed ? 1 - exposed / length : 0);
  if (search_.done()) put_on_trial(iteration + 1);
}

// How many iterations last so long.
uint32_t Conductor::iterations_of(uint64_t ns, uint32_t least) const {
  const double count = static_cast<double>(ns) / static_cast<double>(timetable_.length().mean);
  return count < least ? least : count > 256 ? 256 : static_cast<uint32_t>(count);
}

// A GPU that waits for others in every collective may compute more slowly, up to where it comes last itself. How long
// a collective takes without waiting is what the rank that comes last sees, through the joint page.
void Conductor::take_up_slack(uint64_t iteration) {
  const Mode now = mode(iteration);
  if (!terms_.search || terms_.joint == nullptr || terms_.dry || now.control) return;
  if (now.mhz != usual_mhz_) {  // clocks are still being tried
    usual_mhz_ = now.mhz;
    stretch_seen_ = 0;
    return;
  }
  const double length = static_cast<double>(timetable_.length().mean);
  double least = 1e9, before_end = 0;
  if (timetable_.order_count() > 0) {
    const Timetable::Position& last = timetable_.position(timetable_.order(timetable_.order_count() - 1));
    before_end = static_cast<double>(last.offset.mean + last.duration.mean) - length;
  }
  for (uint32_t i = 0; i < timetable_.order_count(); ++i) {
    const Timetable::Position& position = timetable_.position(timetable_.order(i));
    const double begins = static_cast<double>(position.offset.mean);
    const double computing = begins - before_end;
    before_end = begins + static_cast<double>(position.duration.mean);
    if (position.duration.count < Moving::kMemory) return;
    const uint32_t seen_us = static_cast<uint32_t>(position.duration.mean * 1e-3f);
    const double transfer = 1e3 * terms_.joint->least_us(position.kind, seen_us);
    if (computing < 0.02 * length) continue;  // nothing before it that could be stretched
    const double margin = 0.01 * length + static_cast<double>(2 * position.duration.deviation);
    const double slack = (static_cast<double>(position.duration.mean) - transfer - margin) / computing;
    if (slack < least) least = slack;
  }
  if (++stretch_seen_ < 2 * Moving::kMemory || least > 1e8) return;
  stretch_seen_ = 0;
  const double wish = stretch_ * (1 + (least < 0 ? least : 0.6 * least));
  stretch_ = wish < 1 ? 1 : wish > kMostStretch ? kMostStretch : wish;
}

// The clock at which computation takes that much longer; memory does not follow the clock.
uint32_t Conductor::stretched(uint32_t mhz) const {
  if (stretch_ < 1.02) return mhz;
  const double from = mhz != 0 ? mhz : sampled_mhz_;
  const double clock = from * (1 - kMemoryShare) / (stretch_ - kMemoryShare);
  if (from == 0 || clock >= from) return mhz;
  return clock > terms_.least_mhz ? static_cast<uint32_t>(clock / 15) * 15 : terms_.least_mhz;
}

// From this iteration on it is another way of managing that may cost time.
void Conductor::put_on_trial(uint64_t iteration) {
  trial_ = {};
  settled_ = iteration;
  rarely_ = kFirst;
}

// Keeps to the budget: gives way in steps where iterations take longer than those left alone.
void Conductor::weigh() {
  if (!leads_) return;
  const Trial::Verdict verdict = trial_.verdict(terms_.budget);
  if (verdict == Trial::Verdict::kHarmless) rarely_ = trial_.count(false) < 2 * steady_ ? kRarely : kVeryRarely;
  if (verdict != Trial::Verdict::kTooSlow) return;
  put_on_trial(learnt_);
  if (search_.done() && search_.found_mhz() != 0) return search_.raise();
  paused_until_ = learnt_ + pause_;
  pause_ *= 2;
}

// Whether the clock is to be low for this window now.
bool Conductor::open(const Window& window, uint64_t iteration, double base, double jitter, uint64_t now_ns) const {
  const double now = static_cast<double>(now_ns) - base;
  if (now < window.ask_low || now >= window.ask_high) return false;
  const Timetable::Run& last = timetable_.run(iteration, window.last);
  if (last.stop_ns != 0) return false;
  // The communication should have begun by now and has not: whatever comes before it still runs, and slowly.
  const double expected = static_cast<double>(timetable_.position(window.first).offset.mean);
  return timetable_.run(iteration, window.first).start_ns != 0 || now < expected + kPatienceNs + 2 * jitter;
}

Conductor::Wanted Conductor::wanted(uint64_t now_ns) {
  SpinGuard guard(lock_);
  Wanted wanted;
  wanted.until_ns = now_ns + kFarNs;
  catch_up(now_ns);
  acting_ = wants_sample_ = false;
  const Timetable::Run* latest = period_ != 0 ? timetable_.latest() : nullptr;
  if (latest == nullptr || resting_ || !timetable_.belongs(latest->sequence)) return wanted;
  const uint64_t running = timetable_.iteration_of(latest->sequence);
  const Timetable::Position& position = timetable_.position(timetable_.position_of(latest->sequence));
  const double length = static_cast<double>(timetable_.length().mean);
  wanted.mhz = mode(running).control ? 0 : stretched(mode(running).mhz);
  if (terms_.search && !search_.begun() && samples_ < kSamples) {
    wants_sample_ = mode(running).control && latest->stop_ns != 0;
    wanted.until_ns = now_ns + kSampleEveryNs;
  }
  const double base_now = static_cast<double>(latest->start_ns) - static_cast<double>(position.offset.mean);
  for (int ahead = -1; ahead <= 1; ++ahead) {
    if (ahead < 0 && running == 0) continue;
    const uint64_t iteration = running + static_cast<uint64_t>(static_cast<int64_t>(ahead));
    if (mode(iteration).control) continue;
    const double base = base_now + ahead * length;
    for (uint32_t i = 0; i < windows_.count(); ++i) {
      const Window& window = windows_[i];
      // How well the time of what has not begun is known.
      const bool begun = timetable_.run(iteration, window.first).start_ns != 0;
      const Timetable::Position& first = timetable_.position(window.first);
      const double jitter =
          begun ? 0 : static_cast<double>(first.offset.deviation + (ahead > 0 ? timetable_.length().deviation : 0));
      const uint64_t low_ns = at(base, window.ask_low + 0.5 * jitter), high_ns = at(base, window.ask_high);
      if (now_ns < low_ns) {
        if (low_ns < wanted.until_ns) wanted.until_ns = low_ns;
        continue;
      }
      if (now_ns >= high_ns) continue;
      Deed& done = deed(iteration, i);
      if (done.iteration != iteration) {
        done = {};
        done.iteration = iteration;
      }
      if (done.closed) continue;
      if (!open(window, iteration, base, jitter, now_ns)) {
        if (timetable_.run(iteration, window.last).stop_ns != 0) done.closed = true;
        continue;
      }
      // Too late to begin: it would be up again before it is down.
      const double left = static_cast<double>(high_ns - now_ns);
      if (!low_ && times_.measured && left < times_.change_ns()) continue;
      if (wanted.mhz == 0 || window.mhz < wanted.mhz) wanted.mhz = window.mhz;
      wanted.call = timetable_.run(iteration, window.first).call;
      uint64_t look_ns = high_ns;
      if (!begun) {
        const uint64_t late_ns = at(base, static_cast<double>(first.offset.mean) + kPatienceNs + 2 * jitter) + 10000;
        if (late_ns < look_ns) look_ns = late_ns;
      }
      if (look_ns < wanted.until_ns) wanted.until_ns = look_ns;
      acting_ = true;
      acting_window_ = i;
      acting_iteration_ = iteration;
    }
  }
  return wanted;
}

void Conductor::sampled(uint32_t mhz) {
  SpinGuard guard(lock_);
  ++samples_;
  sampled_mhz_ += (static_cast<double>(mhz) - sampled_mhz_) / samples_;
}

void Conductor::carried_out(uint32_t mhz, uint64_t begin_ns, uint64_t end_ns) {
  SpinGuard guard(lock_);
  const bool was_low = low_;
  low_ = acting_ && mhz != 0;
  if (!terms_.dry) {
    if (tries_ == 0) times_.call = {};
    times_.call.add(static_cast<double>(end_ns - begin_ns));
    // It never arrives where it is replaced too soon: then what was assumed has to do.
    if (mhz != 0 && ++tries_ >= kTries) times_.measured = true;
  }
  const uint64_t there_ns = end_ns + static_cast<uint64_t>(times_.transition.mean);
  Deed& done = deeds_[acting_iteration_ & 1][acting_window_];
  if (done.iteration != acting_iteration_) return;
  if (low_) {
    if (done.low_ns == 0) done.low_ns = there_ns;
    touched_[acting_iteration_ & 1] = acting_iteration_;
  } else if (was_low) {
    done.high_ns = there_ns;
  }
}

void Conductor::arrived(uint64_t after_ns) {
  SpinGuard guard(lock_);
  // The first one replaces what was assumed.
  if (arrivals_++ == 0) times_.transition = {};
  times_.transition.add(static_cast<double>(after_ns));
  times_.measured = true;
}

Conductor::State Conductor::state() {
  SpinGuard guard(lock_);
  State state;
  state.period = period_;
  state.windows = windows_.count();
  state.iterations = learnt_;
  state.managed = managed_;
  state.length_ns = static_cast<double>(timetable_.length().mean);
  state.covered_ns = windows_.covered_ns();
  state.too_short_ns = windows_.too_short_ns();
  state.marked = marked_;
  state.paused = learnt_ < paused_until_;
  state.clock_mhz = mode(agreed_).mhz;
  if (terms_.joint == nullptr || leads_) state.clock_mhz = search_.done() ? search_.found_mhz() : 0;
  state.clocks_tried = search_.tried();
  state.judged = trial_.count(false) >= Trial::kFewest && trial_.count(true) >= Trial::kFewest;
  if (state.judged) state.slowdown = trial_.slowdown();
  return state;
}

}  // namespace powerccl
