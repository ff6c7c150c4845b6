// SPDX-License-Identifier: Apache-2.0
// What the conductor makes of its windows: whether the job came late behind them, and what to change.
#include "policy/conductor.h"

namespace powerccl {
namespace {

double between(uint64_t earlier_ns, uint64_t later_ns) {
  return static_cast<double>(static_cast<int64_t>(later_ns - earlier_ns));
}

}  // namespace

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
    if (done.iteration != iteration || done.first != window.first || done.low_ns == 0) continue;
    const Timetable::Run& last = timetable_.run(iteration, window.last);
    double risen_late = 0;
    if (last.stop_ns != 0 && done.high_ns != 0) {
      risen_late = between(last.stop_ns, done.high_ns) + window.transfer;
      // Later than was meant. One iteration that was cut short must not move it for many.
      const double most = 4 * times_.change_ns(), off = risen_late + window.tail + times_.sooner_ns;
      margins_.tail[window.last].add(off > most ? most : off < -most ? -most : off);
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
  if (low <= 0 || terms_.dry) return;
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
    // Beside computation for most of it: the window is given up, for now. Marks have seen computation wait there.
    const double shorter = mean > 0.25 * lasts ? lasts : mean / kSlower;
    front += static_cast<float>(marked_ && shorter > 0.25 * lasts ? 0.25 * lasts : shorter);
  } else if (seen < 16) {
    return;
  } else {
    front *= 0.9f;  // what was chance is forgotten in the end
  }
  margins_.late[at] = margins_.low[at] = 0;
  margins_.seen[at] = 0;
}

void Conductor::plan() {
  take_turns();
  if (!terms_.windows) return find_changes();
  for (uint32_t i = 0; terms_.joint != nullptr && i < timetable_.order_count(); ++i) {
    const uint32_t index = timetable_.order(i);
    const Timetable::Position& position = timetable_.position(index);
    if (position.duration.count < Moving::kMemory) continue;
    const uint32_t took_us = static_cast<uint32_t>(static_cast<double>(position.duration.mean) * 1e-3);
    margins_.transfer[index] = 1e3f * static_cast<float>(terms_.joint->least_us(position.kind, took_us));
  }
  const uint32_t others = lots_.any() ? lots_.changes() : slack_.stages() > 1 ? slack_.stages() : 0;
  windows_.build(timetable_, margins_, times_, marked_, terms_.least_mhz, others);
  find_changes();
}

// Calls that take much longer than the quickest have waited for those of other GPUs.
void Conductor::take_turns() {
  if (terms_.joint == nullptr || !terms_.turns || !times_.measured || calls_ == 0 || terms_.dry) return;
  const double quickest = static_cast<double>(terms_.joint->quickest_call_ns(static_cast<uint64_t>(least_call_ns_)));
  const bool queues = times_.call_ns() > kQueues * quickest;
  if (queues && calls_ >= kCallsBeforeTurns) terms_.joint->take_turns();
  // Calls that waited, or windows that ended late, make windows look too short; and where none is left nothing is asked
  // for that would teach better. Each time it takes longer until that is tried again.
  const bool stuck = windows_.too_short_ns() > 0 && learnt_ - called_in_ >= forget_after_;
  if (stuck) {
    forget_after_ *= 2;
    called_in_ = learnt_;
    for (Moving& tail : margins_.tail) tail = {};
    if (queues) terms_.joint->take_turns();
  }
  if (!terms_.joint->turns()) return;
  if (stuck || !turns_) {
    turns_ = true;
    times_.call = {};
    times_.call.add(quickest);
  }
  turn_ns_ = quickest;
  const uint32_t count = terms_.joint->places(), place = terms_.joint->place(terms_.number);
  times_.later_ns = place * quickest;
  times_.sooner_ns = count > place + 1 ? (count - 1 - place) * quickest : 0;
}

void Conductor::find_changes() {
  const double length = static_cast<double>(timetable_.length().mean);
  uint32_t window = 0;
  for (uint32_t i = 0; i < timetable_.order_count(); ++i) {
    const uint32_t position = timetable_.order(i);
    const double now = static_cast<double>(timetable_.position(position).offset.mean);
    const bool last = i + 1 == timetable_.order_count();
    const double next = last ? length : static_cast<double>(timetable_.position(timetable_.order(i + 1)).offset.mean);
    while (window < windows_.count() && windows_[window].ask_high <= now) ++window;
    bool& change = before_change_[position];
    change = window < windows_.count() && windows_[window].ask_low < next;
    if (last && windows_.count() > 0 && windows_[0].ask_low < 0) change = true;
    double until = 0;
    if (slack_.stages() > 1) slack_.at(now, length, times_, &until);
    if (until > now && until < next) change = true;
    if (lots_.any() && (lots_.behind(position) || (i > 0 && lots_.behind(timetable_.order(i - 1))))) change = true;
  }
}

}  // namespace powerccl
