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

// Iterations that are left alone: some to begin with, then ever fewer, always the same ones on all ranks of a job whose
// ranks call alike.
bool Conductor::control(uint64_t iteration) const {
  if (iteration < kReference || iteration < paused_until_) return true;
  const uint32_t seen = trial_.count(false);
  return iteration % (seen < 8 ? 8 : 32) == 0;
}

// The clock outside of windows.
uint32_t Conductor::base_mhz(uint64_t iteration) const {
  return search_.begun() && !control(iteration) ? search_.clock(iteration) : 0;
}

void Conductor::restart() {
  learnt_ = usual_ = 0;
  paused_until_ = 0;
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
      margins_.tail[window.last].add(risen_late + window.tail);
    }
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
  const bool clear = late_in_all > 0.3 * low_in_all || seen >= 4;
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
void Conductor::catch_up() {
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
    const bool touched = windowed || base_mhz(learnt_) != 0;
    timetable_.learn(learnt_, !touched);
    if (start_ns != 0) {
      const uint64_t duration_ns = timetable_.start_of(learnt_ + 1) - start_ns;
      if (windowed) judge(learnt_);
      if (touched) ++managed_;
      tell_search(learnt_, duration_ns);
      // While clocks are tried, iterations are no example of anything; the very first ones may be of a job that warms up.
      if ((!search_.begun() || search_.done()) && (learnt_ >= kReference || trial_.count(false) == 0)) {
        trial_.iteration(touched, duration_ns);
      }
    }
    ++learnt_;
    news = true;
  }
  if (!news) return;
  weigh();
  plan();
}

void Conductor::tell_search(uint64_t iteration, uint64_t duration_ns) {
  if (!terms_.search) return;
  if (!search_.begun()) {
    const uint64_t enough = kReference + (windows_.count() > 0 ? kBeforeSearch : 0);
    if (iteration < enough || iteration < paused_until_) return;
    search_.begin({.most_mhz = terms_.most_mhz, .least_mhz = terms_.least_mhz, .slowdown = 0.5 * terms_.budget},
                  iteration + 1);
    return;
  }
  if (search_.done() || control(iteration)) return;
  const double exposed = windows_.covered_ns() + windows_.too_short_ns();
  const double length = static_cast<double>(timetable_.length().mean);
  search_.iteration(iteration, duration_ns, length > exposed ? 1 - exposed / length : 0);
  if (search_.done()) trial_ = {};  // from here on another way of managing is on trial
}

// Keeps to the budget: gives way in steps where iterations take longer than those left alone.
void Conductor::weigh() {
  if (trial_.verdict(terms_.budget) != Trial::Verdict::kTooSlow) return;
  trial_ = {};
  if (search_.done() && search_.found_mhz() != 0) return search_.raise();
  paused_until_ = learnt_ + pause_;
  pause_ *= 2;
}

// Whether the clock is to be low for this window now.
bool Conductor::open(const Window& window, uint64_t iteration, double base, uint64_t now_ns) const {
  const double now = static_cast<double>(now_ns) - base;
  if (now < window.ask_low || now >= window.ask_high) return false;
  const Timetable::Run& last = timetable_.run(iteration, window.last);
  if (last.stop_ns != 0) return false;
  // The communication should have begun by now and has not: whatever comes before it still runs, and slowly.
  const Timetable::Position& position = timetable_.position(window.first);
  const double expected = static_cast<double>(position.offset.mean);
  const double patience = static_cast<double>(2 * position.offset.deviation) + 300000.0;
  return timetable_.run(iteration, window.first).start_ns != 0 || now < expected + patience;
}

Conductor::Wanted Conductor::wanted(uint64_t now_ns) {
  SpinGuard guard(lock_);
  Wanted wanted;
  wanted.until_ns = now_ns + kFarNs;
  catch_up();
  acting_ = false;
  const Timetable::Run* latest = period_ != 0 ? timetable_.latest() : nullptr;
  if (latest == nullptr || resting_ || !timetable_.belongs(latest->sequence)) return wanted;
  const uint64_t running = timetable_.iteration_of(latest->sequence);
  const Timetable::Position& position = timetable_.position(timetable_.position_of(latest->sequence));
  const double length = static_cast<double>(timetable_.length().mean);
  wanted.mhz = base_mhz(running);
  const double base_now = static_cast<double>(latest->start_ns) - static_cast<double>(position.offset.mean);
  for (int ahead = -1; ahead <= 1; ++ahead) {
    if (ahead < 0 && running == 0) continue;
    const uint64_t iteration = running + static_cast<uint64_t>(static_cast<int64_t>(ahead));
    if (control(iteration)) continue;
    const double base = base_now + ahead * length;
    for (uint32_t i = 0; i < windows_.count(); ++i) {
      const Window& window = windows_[i];
      const uint64_t low_ns = at(base, window.ask_low), high_ns = at(base, window.ask_high);
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
      if (!open(window, iteration, base, now_ns)) {
        if (timetable_.run(iteration, window.last).stop_ns != 0) done.closed = true;
        continue;
      }
      // Too late to begin: it would be up again before it is down.
      const double left = static_cast<double>(high_ns - now_ns);
      if (!low_ && times_.measured && left < times_.change_ns()) continue;
      if (wanted.mhz == 0 || window.mhz < wanted.mhz) wanted.mhz = window.mhz;
      wanted.call = timetable_.run(iteration, window.first).call;
      uint64_t look_ns = high_ns;
      if (timetable_.run(iteration, window.first).start_ns == 0) {
        const Timetable::Position& first = timetable_.position(window.first);
        const uint64_t late_ns =
            at(base, static_cast<double>(first.offset.mean + 2 * first.offset.deviation)) + 310000;
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
  state.clock_mhz = search_.done() ? search_.found_mhz() : 0;
  state.clocks_tried = search_.tried();
  state.judged = trial_.count(false) >= Trial::kFewest && trial_.count(true) >= Trial::kFewest;
  if (state.judged) state.slowdown = trial_.slowdown();
  return state;
}

}  // namespace powerccl
