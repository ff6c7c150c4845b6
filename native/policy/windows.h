// SPDX-License-Identifier: Apache-2.0
// Where in an iteration the clock may be low: what is exposed, long enough, and how far ahead it has to be asked for.
#ifndef POWERCCL_POLICY_WINDOWS_H
#define POWERCCL_POLICY_WINDOWS_H
#include <stdint.h>

#include "policy/change_cost.h"
#include "policy/timetable.h"

namespace powerccl {

// What a change of clock takes here: the driver's call, in which GPUs wait for each other, and from its end until the
// clock is there.
struct SwitchTimes {
  Moving call, transition;
  bool measured = false;  // else assumed
  // A driver that serves one GPU after the other is asked by each in its turn: down so much later than it could be, up
  // so much sooner. Else each would be kept waiting by chance, and all wait for the last.
  double later_ns = 0, sooner_ns = 0;
  double processor_ns = ChangeCost::kAssumedNs;  // that it takes of a core
  static constexpr uint32_t kArrivals = 6;       // transitions that are measured
  float arrivals[kArrivals] = {};                // the shortest first
  uint32_t arrival_count = 0;

  // A clock was seen to arrive so long after the call that asked for it, in ns. One look that was held up must not
  // count for all: what is far from most of them is left out.
  void arrived(double ns);
  double call_ns() const { return static_cast<double>(call.mean); }
  double transition_ns() const { return static_cast<double>(transition.mean); }
  double change_ns() const { return call_ns() + transition_ns(); }
  // Hardly any change was slower: what is asked for so long ahead is there in time.
  double slow_change_ns() const {
    return change_ns() + (measured ? kSlow * static_cast<double>(call.deviation + transition.deviation) : 0);
  }
  // No change was seen to be quicker, as far as is remembered: a clock asked for so long ahead is not there too early.
  double quickest_ns() const { return measured ? low(call) + low(transition) : 0; }

 private:
  static constexpr double kSlow = 0.5;
  static constexpr float kFar = 2;  // times as long, or as short
  static double low(const Moving& m) {
    return m.mean > m.deviation ? static_cast<double>(m.mean - 0.5f * m.deviation) : 0;
  }
};

// A stretch of the iteration at a low clock; offsets in ns from the start of the iteration's first kernel.
struct Window {
  uint32_t first = 0, last = 0;      // positions of its first and last kernel
  double low = 0, high = 0;          // the clock is to be low from here to there
  double end = 0;                    // of its last kernel, as expected, or of what it waits for
  double transfer = 0;               // so long before the kernel's end: that takes a higher clock than waiting does
  double tail = 0;                   // so much before that the clock is to be up
  double ask_low = 0, ask_high = 0;  // when to ask for it
  uint32_t mhz = 0;
};

// What was learnt beyond the timetable, by position: how much later the clock may fall than the communication begins,
// because computation still runs beside it, and how much earlier it must rise. ns.
struct Margins {
  float front[Timetable::kLongest] = {};
  Moving tail[Timetable::kLongest];
  // How long the kernel takes where it waits for nobody, as far as is known; 0: it is not.
  float transfer[Timetable::kLongest] = {};
  static constexpr double kHardlyEver = 1;  // deviations

  // Hardly ever late, since all other ranks wait for the one that is; `least` more than on average.
  double tail_ns(uint32_t position, double least) const {
    const double deviation = kHardlyEver * static_cast<double>(tail[position].deviation);
    return static_cast<double>(tail[position].mean) + (deviation > least ? deviation : least);
  }
  // What has been seen of its lateness since the front was changed last.
  float late[Timetable::kLongest] = {}, low[Timetable::kLongest] = {};
  uint16_t seen[Timetable::kLongest] = {};
};

class Windows {
 public:
  static constexpr uint32_t kMost = 256;  // an iteration; the longest

  // `marked`: the timetable knows of all that computation waits for, else everything counts as waited for until it
  // proves otherwise. `least_mhz`: for what only waits; 0: as for the transfer. `others`: changes of clock that an
  // iteration has besides.
  void build(const Timetable& timetable, const Margins& margins, const SwitchTimes& times, bool marked,
             uint32_t least_mhz = 0, uint32_t others = 0);

  uint32_t count() const { return count_; }
  const Window& operator[](uint32_t index) const { return windows_[index]; }
  // Left out because switching takes too long for them, in ns of an iteration; and what the windows amount to.
  double too_short_ns() const { return too_short_ns_; }
  double covered_ns() const { return covered_ns_; }

 private:
  static constexpr double kBusyShare = 0.5;  // of the time, that may go by in driver calls
  // Changes may take that share of a core, and are no more a second, for powerccld lets who asks it 200 times wait.
  static constexpr double kCoreShare = 0.0045, kMostPerSecond = 170;
  static constexpr double kJoinShare = 0.01, kShortShare = 0.25, kMuchHigher = 1.3;
  static constexpr double kSooner = 2;  // deviations of how long a kernel takes
  static constexpr double kMostlyWaits = 0.6;
  static constexpr double kInTurns = 1.25;

  void add(const Window& window, const SwitchTimes& times);
  bool worthwhile(const Window& window, const SwitchTimes& times) const;
  void drop_shortest();

  Window windows_[kMost];
  uint32_t count_ = 0;
  double too_short_ns_ = 0, covered_ns_ = 0;
};

}  // namespace powerccl
#endif
