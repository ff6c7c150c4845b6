// SPDX-License-Identifier: Apache-2.0
#include "policy/conductor.h"

namespace powerccl {
namespace {

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
  if (terms.joint != nullptr) {
    const uint32_t place = terms.joint->place(terms.number);
    if (terms.search && terms.expert_load && !terms.dry) lots_.begin(terms.joint, place);
  }
}

void Conductor::called(uint64_t call, uint32_t kind, uint32_t mhz) {
  SpinGuard guard(lock_);
  resting_ = false;
  graphs_alone_ = 0;
  timetable_.called(call, kind, mhz);
}

void Conductor::all_to_all_called(uint64_t call, uint32_t kind, uint32_t mhz, uint32_t key, uint64_t received) {
  SpinGuard guard(lock_);
  resting_ = false;
  graphs_alone_ = 0;
  const uint64_t sequence = timetable_.called(call, kind, mhz);
  lots_.received(timetable_, call, sequence, key, received);
}

void Conductor::graph_called(uint64_t call, uint32_t kind) {
  SpinGuard guard(lock_);
  resting_ = false;
  if (graphs_alone_ < kGraphsAlone) ++graphs_alone_;
  if (inside_graphs()) return;
  timetable_.called(call, kind, 0);
  graphs_ = true;
}

uint64_t Conductor::captured_begins(uint32_t kind, uint32_t mhz) {
  SpinGuard guard(lock_);
  ++captured_;
  if (!inside_graphs()) return 0;
  const uint64_t call = kCapturedCall + captured_;
  timetable_.called(call, kind, mhz);
  return call;
}

void Conductor::rest() {
  SpinGuard guard(lock_);
  resting_ = true;
}

bool Conductor::started(uint64_t call, uint64_t start_ns) {
  SpinGuard guard(lock_);
  if (!timetable_.started(call, start_ns)) return false;
  // Waking the clock thread takes microseconds of a core, and jobs may start a thousand kernels a second.
  if (acting_) return true;
  if (!timetable_.settled()) return ++unsettled_ % kLookEvery == 0;
  const Timetable::Run* latest = timetable_.latest();
  if (!timetable_.belongs(latest->sequence)) return false;
  const uint32_t position = timetable_.position_of(latest->sequence);
  return position == 0 || before_change_[position];
}

bool Conductor::stopped(uint64_t call, uint64_t stop_ns) {
  SpinGuard guard(lock_);
  return timetable_.stopped(call, stop_ns) && acting_;
}

void Conductor::waited(uint64_t call, uint64_t stall_ns) {
  SpinGuard guard(lock_);
  if (timetable_.waited(call, stall_ns)) marked_ = true;
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
  if (terms_.search && !search_.begun() && mode(running).control) {
    wants_sample_ = latest->stop_ns != 0;
    wanted.until_ns = now_ns + (samples_ < kSamples ? kSampleEveryNs : kSampleRarelyNs);
  }
  const double base_now = static_cast<double>(latest->start_ns) - static_cast<double>(position.offset.mean);
  if (!mode(running).control) {
    double until = 0;
    double stretch = slack_.at(static_cast<double>(now_ns) - base_now, length, times_, &until);
    // What runs now decides about the computation behind it.
    const uint32_t mhz = mode(running).mhz;
    if (lots_.any()) stretch = lots_.stretch(timetable_, running, timetable_.position_of(latest->sequence), mhz != 0);
    wanted.mhz = stretched(mhz, stretch);
    // Whoever looks at that very moment may be told of the stage before it, by rounding: they have to look again.
    const uint64_t until_ns = at(base_now, until);
    if (slack_.stages() > 1 && until_ns + kSoonNs > now_ns) {
      wanted.until_ns = until_ns > now_ns ? until_ns : now_ns + kSoonNs;
    }
  }
  const uint32_t outside_mhz = wanted.mhz;
  for (int ahead = -1; ahead <= 1; ++ahead) {
    if (ahead < 0 && running == 0) continue;
    const uint64_t iteration = running + static_cast<uint64_t>(static_cast<int64_t>(ahead));
    if (mode(iteration).control || !mode(iteration).windows) continue;
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
      if (done.iteration != iteration || done.first != window.first) {
        done = {};
        done.iteration = iteration;
        done.first = window.first;
      }
      if (done.closed || (outside_mhz != 0 && window.mhz >= outside_mhz)) continue;
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
      acting_first_ = window.first;
      acting_iteration_ = iteration;
    }
  }
  // Behind the window the clock is to be as low as in it: nothing is learnt about when it rises.
  if (low_ && !acting_ && wanted.mhz != 0 && wanted.mhz <= asked_mhz_) end_window(0);
  return wanted;
}

void Conductor::sampled(uint32_t mhz) {
  SpinGuard guard(lock_);
  if (samples_ < kSamples) ++samples_;
  sampled_mhz_ += (static_cast<double>(mhz) - sampled_mhz_) / samples_;
}

void Conductor::carried_out(uint32_t mhz, uint64_t begin_ns, uint64_t end_ns) {
  SpinGuard guard(lock_);
  const bool was_low = low_;
  double waited = 0;
  low_ = acting_ && mhz != 0;
  asked_mhz_ = mhz;
  if (!terms_.dry) {
    if (tries_ == 0) times_.call = {};
    const double took = static_cast<double>(end_ns - begin_ns);
    // Outside of windows all GPUs change at once: what the driver takes then says nothing about windows.
    if (low_ || was_low || times_.call.count == 0) {
      // Who asks in turns and has to wait has come too early, and would come even earlier for having waited.
      // Nor may it ask sooner the next time: that is another's turn.
      const double most = kInTurn * turn_ns_;
      if (turns_ && took > most) waited = took - most;
      times_.call.add(took - waited);
      called_in_ = learnt_;
    }
    if (calls_++ == 0 || took < least_call_ns_) least_call_ns_ = took;
    // It never arrives where it is replaced too soon: then what was assumed has to do.
    if (mhz != 0 && ++tries_ >= kTries) times_.measured = true;
  }
  const uint64_t there_ns = end_ns + static_cast<uint64_t>(times_.transition.mean);
  if (!low_ && was_low) return end_window(there_ns - static_cast<uint64_t>(waited));
  Deed& done = deeds_[acting_iteration_ & 1][acting_window_];
  if (!low_ || done.iteration != acting_iteration_ || done.first != acting_first_) return;
  if (done.low_ns == 0) done.low_ns = there_ns;
  touched_[acting_iteration_ & 1] = acting_iteration_;
}

// The clock is up again behind the window that was acted on last; 0: it has not been low for it in the end.
void Conductor::end_window(uint64_t high_ns) {
  low_ = false;
  Deed& done = deeds_[acting_iteration_ & 1][acting_window_];
  if (done.iteration != acting_iteration_ || done.first != acting_first_) return;
  if (high_ns == 0) done.low_ns = 0;
  done.high_ns = high_ns;
}

void Conductor::arrived(uint64_t least_ns, uint64_t most_ns, bool precise) {
  SpinGuard guard(lock_);
  const double least = static_cast<double>(least_ns), most = static_cast<double>(most_ns);
  times_.measured = true;
  if (precise) {
    times_.arrived((least + most) / 2);
  } else if (times_.arrival_count == 0) {
    // Reading waits for the calls of other GPUs, too: what was assumed holds as far as it can be true.
    const double assumed = times_.transition_ns();
    times_.transition = {};
    times_.transition.add(assumed < least ? least : assumed > most ? most : assumed);
  }
}

void Conductor::took_of_core(double ns) {
  SpinGuard guard(lock_);
  times_.processor_ns = ns;
}

Conductor::State Conductor::state() {
  SpinGuard guard(lock_);
  State state;
  state.period = last_period_;
  state.windows = windows_back_ == 0 ? windows_.count() : 0;
  state.iterations = seen_;
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
  if (!state.judged && gave_way_) {
    state.judged = true;
    state.slowdown = given_up_;
  }
  return state;
}

}  // namespace powerccl
