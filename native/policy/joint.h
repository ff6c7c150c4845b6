// SPDX-License-Identifier: Apache-2.0
// What the ranks of one host do alike: the clock outside of windows, and which iterations are left alone to compare
// with; whose turn it is to ask the driver; how long each kind of communication takes where nobody has to wait for
// others in it; and what each receives in an all-to-all. One of them leads and says what holds from each rank's next
// iteration on; memory that they share is all that passes between them, and nobody waits for anybody.
#ifndef POWERCCL_POLICY_JOINT_H
#define POWERCCL_POLICY_JOINT_H
#include <stdint.h>

#include <atomic>

namespace powerccl {

struct Mode {
  bool control = true;  // nothing is managed
  uint32_t mhz = 0;     // outside of windows; 0: the default
  bool windows = true;  // there are any
  bool slack = true;    // may be taken up
};

// Lies in that memory, which is all zero to begin with.
class Joint {
 public:
  // Whether the one with this number (never 0) leads: nobody did, or whoever did has been silent for too long.
  bool lead(uint64_t self, uint64_t now_ns, uint64_t patience_ns) {
    uint64_t leader = leader_.load(std::memory_order_acquire);
    if (leader == self) return true;
    const uint64_t said_ns = said_ns_.load(std::memory_order_relaxed);
    if (leader != 0 && (now_ns < said_ns || now_ns - said_ns < patience_ns)) return false;
    if (!leader_.compare_exchange_strong(leader, self, std::memory_order_acq_rel)) return false;
    said_ns_.store(now_ns, std::memory_order_relaxed);
    return true;
  }
  // `mode` is for iterations that begin from `from_ns` on; what was said before holds until then.
  void say(const Mode& mode, uint64_t from_ns, uint64_t now_ns) {
    const uint64_t said = kSaid | (mode.control ? kControl : 0) | (mode.windows ? 0 : kNoWindows) |
                          (mode.slack ? 0 : kNoSlack) | mode.mhz;
    const uint64_t before = next_.load(std::memory_order_relaxed);
    now_.store(before, std::memory_order_release);
    from_ns_.store(from_ns, std::memory_order_release);
    next_.store(said, std::memory_order_release);
    said_ns_.store(now_ns, std::memory_order_relaxed);
  }
  // For an iteration that begins then. Nothing was said yet: nothing is managed. Read while it is being said it may be
  // the mode before, for one iteration.
  Mode mode_at(uint64_t begin_ns) const {
    const bool next = begin_ns >= from_ns_.load(std::memory_order_acquire);
    const uint64_t said = (next ? next_ : now_).load(std::memory_order_acquire);
    return {(said & kSaid) == 0 || (said & kControl) != 0, static_cast<uint32_t>(said), (said & kNoWindows) == 0,
            (said & kNoSlack) == 0};
  }

  // Which of the host's GPUs this one is, from 0 in the order in which they asked, and how many have. With more than
  // are remembered the last place is shared.
  uint32_t place(uint64_t self) {
    uint32_t at = 0;
    for (; at + 1 < kPlaces; ++at) {
      uint64_t held = places_[at].load(std::memory_order_relaxed);
      if (held == self || (held == 0 && places_[at].compare_exchange_strong(held, self)) || held == self) break;
    }
    return at;
  }
  uint32_t places() const {
    uint32_t count = 0;
    while (count < kPlaces && places_[count].load(std::memory_order_relaxed) != 0) ++count;
    return count;
  }

  // The driver's calls take so long at least, as far as this rank has seen. Returns what any has, in ns.
  uint64_t quickest_call_ns(uint64_t seen_ns) {
    uint64_t least = call_ns_.load(std::memory_order_relaxed);
    while ((least == 0 || seen_ns < least) && !call_ns_.compare_exchange_weak(least, seen_ns)) {
    }
    return least == 0 || seen_ns < least ? seen_ns : least;
  }
  // Calls were seen to wait for each other: from then on all ask in turns, or who does would still meet who does not.
  void take_turns() { turns_.store(1, std::memory_order_relaxed); }
  bool turns() const { return turns_.load(std::memory_order_relaxed) != 0; }

  // A rank has seen communication of this kind last so long, in us. Returns the least that any rank has: whoever comes
  // last to a collective has nothing to wait for. It rises slowly, in case that conditions change.
  uint32_t least_us(uint32_t kind, uint32_t seen_us) {
    for (uint32_t tried = 0; tried < kWays; ++tried) {
      std::atomic<uint64_t>& entry = least_[(kind + tried) % kKinds];
      uint64_t held = entry.load(std::memory_order_relaxed);
      if (held == 0 && entry.compare_exchange_strong(held, uint64_t{kind} << 32 | seen_us)) return seen_us;
      if (held >> 32 != kind) continue;
      const uint32_t least = static_cast<uint32_t>(held);
      const uint32_t now = seen_us < least ? seen_us : least + (seen_us - least) / 256;
      if (now != least) entry.compare_exchange_strong(held, uint64_t{kind} << 32 | now);
      return now;
    }
    return seen_us;
  }

  // What the rank at that place receives in an all-to-all, which all its ranks know by the same key, and how many us it
  // will compute behind it; 0: it does not know.
  void tell_load(uint32_t place, uint32_t key, uint32_t kib, uint32_t us) {
    const uint64_t load = (kib < kMostLoad ? kib : kMostLoad) << kLoadBits | (us < kMostLoad ? us : kMostLoad);
    loads_[place][key % kLoads].store(tag_of(key) | load, std::memory_order_release);
  }
  struct Loads {
    uint32_t ranks = 0;    // of this host that have told
    bool unknown = false;  // one of them does not know how long
    uint32_t most_kib = 0, most_us = 0, own_us = 0;
    double squares_us = 0;  // the sum over ranks of how long each will compute, squared
  };
  Loads loads(uint32_t place, uint32_t key) const {
    Loads found;
    for (uint32_t at = 0; at < kPlaces; ++at) {
      const uint64_t said = loads_[at][key % kLoads].load(std::memory_order_acquire);
      if (said >> (2 * kLoadBits) != tag_of(key) >> (2 * kLoadBits)) continue;
      const uint32_t kib = said >> kLoadBits & kMostLoad, us = said & kMostLoad;
      ++found.ranks;
      if (kib > found.most_kib) found.most_kib = kib;
      if (us > found.most_us) found.most_us = us;
      found.squares_us += static_cast<double>(us) * us;
      if (at == place) found.own_us = us;
      found.unknown = found.unknown || us == 0;
    }
    return found;
  }

 private:
  // Of a load: what it belongs to, KiB and us.
  static constexpr uint32_t kLoads = 1024, kLoadBits = 20;
  static constexpr uint64_t kMostLoad = (1u << kLoadBits) - 1;
  static uint64_t tag_of(uint32_t key) { return uint64_t{key / kLoads | 1u << 23} << (2 * kLoadBits); }

  static constexpr uint32_t kKinds = 448, kWays = 8, kPlaces = 32;
  static constexpr uint64_t kSaid = uint64_t{1} << 63, kControl = uint64_t{1} << 62, kNoWindows = uint64_t{1} << 61,
                            kNoSlack = uint64_t{1} << 60;
  std::atomic<uint64_t> leader_{0}, now_{0}, next_{0}, from_ns_{0}, said_ns_{0};
  std::atomic<uint64_t> call_ns_{0}, turns_{0};
  std::atomic<uint64_t> places_[kPlaces]{};
  std::atomic<uint64_t> least_[kKinds]{};  // kind << 32 | us; 0: free
  std::atomic<uint64_t> loads_[kPlaces][kLoads]{};
};

}  // namespace powerccl
#endif
