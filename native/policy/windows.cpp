// SPDX-License-Identifier: Apache-2.0
#include "policy/windows.h"

namespace powerccl {

void SwitchTimes::arrived(double ns) {
  if (arrival_count == kArrivals) return;
  const float added = static_cast<float>(ns);
  uint32_t at = arrival_count++;
  for (; at > 0 && arrivals[at - 1] > added; --at) arrivals[at] = arrivals[at - 1];
  arrivals[at] = added;
  const float middle = arrivals[(arrival_count - 1) / 2];
  transition = {};
  for (uint32_t i = 0; i < arrival_count; ++i) {
    if (arrivals[i] <= kFar * middle && kFar * arrivals[i] >= middle) transition.add(static_cast<double>(arrivals[i]));
  }
}

// A clock asked for while another change is under way replaces it, so a window is as long as a change takes at least;
// and it must be left low for as long again to be worth the disturbance.
bool Windows::worthwhile(const Window& window, const SwitchTimes& times) const {
  if (!times.measured) return true;
  // Where each has its turn, one that only just fits would be there for some and not for others, now and then.
  const double fits = times.later_ns + times.sooner_ns > 0 ? kInTurns : 1;
  return window.ask_high - window.ask_low >= fits * times.change_ns() && window.high - window.low >= times.change_ns();
}

void Windows::drop_shortest() {
  uint32_t shortest = 0;
  for (uint32_t i = 1; i < count_; ++i) {
    if (windows_[i].high - windows_[i].low < windows_[shortest].high - windows_[shortest].low) shortest = i;
  }
  too_short_ns_ += windows_[shortest].high - windows_[shortest].low;
  for (uint32_t i = shortest; i + 1 < count_; ++i) windows_[i] = windows_[i + 1];
  --count_;
}

void Windows::add(const Window& added, const SwitchTimes& times) {
  Window window = added;
  if (count_ > 0) {
    Window& before = windows_[count_ - 1];
    const double together = window.end - before.low;
    // A short neighbour that needs a much higher clock is not worth having all of it there.
    const double its_own = window.end - window.low, others = before.end - before.low;
    const bool adjoins = window.low - before.end <= kJoinShare * together;
    if (adjoins && window.mhz > kMuchHigher * before.mhz && its_own < kShortShare * others) {
      too_short_ns_ += window.high - window.low;
      return;
    }
    if (adjoins && before.mhz > kMuchHigher * window.mhz && others < kShortShare * its_own) {
      too_short_ns_ += before.high - before.low;
      --count_;
      return add(added, times);
    }
    if (adjoins) {
      if (window.end > before.end) {
        before.high = window.high;
        before.end = window.end;
        before.last = window.last;
        before.tail = window.tail;
        before.transfer = window.transfer;
      }
      if (window.mhz > before.mhz) before.mhz = window.mhz;
      before.ask_high = before.high - times.slow_change_ns() - times.sooner_ns;
      return;
    }
  }
  window.ask_low = window.low - times.quickest_ns() + times.later_ns;
  window.ask_high = window.high - times.slow_change_ns() - times.sooner_ns;
  if (count_ > 0) {
    // The clock must have risen from the window before it.
    Window& before = windows_[count_ - 1];
    const double earliest = before.ask_high + times.change_ns();
    if (!worthwhile(before, times)) {
      too_short_ns_ += before.high - before.low;
      --count_;
    } else if (window.ask_low < earliest) {
      window.low += earliest - window.ask_low;
      window.ask_low = earliest;
      if (window.high <= window.low) {
        too_short_ns_ += added.high - added.low;
        return;
      }
    }
  }
  if (count_ == kMost) drop_shortest();
  windows_[count_++] = window;
}

void Windows::build(const Timetable& timetable, const Margins& margins, const SwitchTimes& times, bool marked,
                    uint32_t least_mhz, uint32_t others) {
  count_ = 0;
  too_short_ns_ = covered_ns_ = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t index = timetable.order(i);
    const Timetable::Position& position = timetable.position(index);
    if (position.mhz == 0 || position.duration.count == 0 || (marked && position.exposed_from.count == 0)) continue;
    Window window;
    window.first = window.last = index;
    window.mhz = position.mhz;
    window.low = static_cast<double>(position.offset.mean + margins.front[index]);
    if (marked) {
      const double from = static_cast<double>(position.exposed_from.mean + position.exposed_from.deviation);
      window.low += from;
    }
    window.end = static_cast<double>(position.offset.mean + position.duration.mean);
    // Whoever waits for a peer for most of the time can do so at any clock, and has the transfer's own outside of it.
    const double duration = static_cast<double>(position.duration.mean),
                 transfer = static_cast<double>(margins.transfer[index]);
    const bool higher = least_mhz != 0 && position.mhz > kMuchHigher * least_mhz;
    if (higher && transfer > 0 && duration - transfer > kMostlyWaits * duration) {
      window.mhz = least_mhz;
      window.transfer = transfer;
      window.end -= transfer;
    }
    // Where it may end sooner than it mostly does, the clock must be up by then.
    window.tail = margins.tail_ns(index, kSooner * static_cast<double>(position.duration.deviation));
    window.high = window.end - window.tail;
    if (window.high > window.low) add(window, times);
  }
  if (count_ > 0 && !worthwhile(windows_[count_ - 1], times)) {
    too_short_ns_ += windows_[count_ - 1].high - windows_[count_ - 1].low;
    --count_;
  }
  // What a change takes is found out on the longest window, whatever it was assumed to be.
  while (!times.measured && count_ > 1) drop_shortest();
  if (!times.measured && count_ > 0) windows_[0].ask_high = windows_[0].high;
  const double length = static_cast<double>(timetable.length().mean);
  const double afforded = kCoreShare / times.processor_ns, allowed = kMostPerSecond * 1e-9;
  const double most = (afforded < allowed ? afforded : allowed) * length - others, busy = kBusyShare * length;
  while (times.measured && count_ > 0 && (2 * count_ > most || 2 * count_ * times.call_ns() > busy)) drop_shortest();
  for (uint32_t i = 0; i < count_; ++i) covered_ns_ += windows_[i].high - windows_[i].low;
}

}  // namespace powerccl
