// SPDX-License-Identifier: Apache-2.0
// Model time: what is due when, the GPUs as time passes over them, and work whose speed follows their clocks.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "physics/gpu.h"
#include "physics/interfaces.h"
#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

Time after_us(Time from, double us);

class Clockwork {
 public:
  using HoldId = uint64_t;
  using Action = std::function<void(Time)>;
  using Rate = std::function<double(std::span<const double> clocks_mhz)>;  // per ns

  Clockwork(const Platform& platform, Time start);

  const Platform& platform() const { return platform_; }
  Time now() const { return now_; }
  void advance(Time to);
  Time next() const;  // INT64_MAX: nothing is due
  bool next_is_precise() const;

  // `precise`: a process outside sees when it happens.
  TimerId at(Time when, Action action, bool precise = true);
  void cancel_timer(TimerId timer);

  // Model time stops at `when` until release(). What comes behind depends on a process outside, which is late only
  // because this machine is busy. Given up after `patience` of driven time, so that no process can stop the model for
  // good.
  HoldId hold(Time when, Time patience);
  bool release(HoldId hold);  // false: it was given up

  uint32_t gpus() const { return static_cast<uint32_t>(gpus_.size()); }
  Gpu& gpu(uint32_t index) { return gpus_[index]; }
  // Runs `change` on a GPU at now, with power integrated up to it and every rate that depends on it re-evaluated behind
  // it.
  void change_gpu(uint32_t index, const std::function<void(Gpu&)>& change);
  // Work of that GPU stands still until then, at least.
  void stall(uint32_t gpu, Time until);
  void publish(BoardPage& page);

  // `kernel`: of one GPU, sharing it with its other kernels and slowed by communication there.
  WorkId add_work(std::vector<uint32_t> gpus, double total, Rate rate, Action done, bool kernel);
  void cancel_work(WorkId work);
  void refresh_work(WorkId work);  // its rate depends on more than clocks, and that has changed

  uint64_t new_id() { return next_id_++; }

 private:
  struct Timer {
    Action action;
    bool precise;
  };
  struct Work {
    std::vector<uint32_t> gpus;
    double remaining;
    double rate = 0;  // per ns
    Time since = 0;
    Rate rate_of;
    Action done;
    TimerId timer = 0;
    bool kernel = false;
  };

  struct Hold {
    Time until = 0;        // model time
    Time given_up_at = 0;  // driven time
  };

  Time known_until() const;  // when something changes next, or model time stands still; INT64_MAX: never
  Time limit(Time to) const;
  void rerate(uint32_t gpu);
  void rate_work(WorkId id, Work& work);
  void complete_work(WorkId id);
  void start_ticking();
  void schedule_tick();
  void tick();

  const Platform& platform_;
  Time now_;
  std::vector<Gpu> gpus_;
  std::vector<Time> stalled_until_;  // by GPU
  BoardPage* board_ = nullptr;
  uint64_t next_id_ = 1;
  std::map<std::pair<Time, TimerId>, Timer> timers_;
  std::unordered_map<TimerId, Time> timer_times_;
  std::unordered_map<WorkId, Work> works_;
  bool ticking_ = false;
  Time driven_to_;
  std::map<HoldId, Hold> holds_;
};

}  // namespace powerccl::physics
