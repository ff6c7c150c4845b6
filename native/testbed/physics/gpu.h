// SPDX-License-Identifier: Apache-2.0
// One emulated GPU: clock, governor, temperature, power and energy. Pure model time; knows nothing of streams or
// clients.
//
// Power is constant between two calls of settle(), so its integral is exact. Code that changes what runs calls
// settle(now) first, then the change, then update(), which gives the new clock and power.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

// What each state of each emulated GPU really took: for checking analyses that have to infer it from samples.
//
// A GPU is in one state between two changes of what runs on it, and its power is constant in between. So the sums are
// those of the model's own integration and not of any reading.
class Truth {
 public:
  struct Operation {
    uint8_t pattern = 255;          // of Pattern; others: not known
    uint64_t size_class_bytes = 0;  // the power of two at or below what a trace calls the operation's size
    auto operator<=>(const Operation&) const = default;
  };
  struct State {
    uint32_t gpu = 0;
    bool asleep = false, computing = false;
    std::vector<Operation> running;  // ascending
    auto operator<=>(const State&) const = default;
  };
  struct Sum {
    int64_t ns = 0;
    double microjoules = 0;
  };

  static Operation operation(uint8_t pattern, double bytes);
  void spent(const State& state, int64_t ns, double watts);
  void began(uint32_t gpu, const Operation& operation) { ++operations_[{gpu, operation}]; }
  // As JSON; `error` says why not.
  bool write(const std::string& path, const std::string& platform, std::string& error) const;

 private:
  std::map<State, Sum> states_;
  std::map<std::pair<uint32_t, Operation>, uint64_t> operations_;
};

// An operation's kernels or copies on one GPU.
struct Communication {
  double bytes = 0;
  double power = 1;       // of what so many bytes draw
  double slows = 1;       // of how much the platform's communication slows computation beside it
  Truth::Operation as{};  // what the truth calls it
  auto operator<=>(const Communication&) const = default;
};

class Gpu {
 public:
  // `index` of the GPU on its server: no two draw quite the same (Platform::gpu_spread).
  Gpu(const Platform& platform, int64_t start, uint32_t index = 0);

  double clock_mhz() const { return clock_mhz_; }
  uint32_t power_limit_mw() const { return static_cast<uint32_t>(platform_->power_limit_w * 1000); }
  double watts() const { return watts_; }
  double temperature_c() const { return temperature_c_; }
  double energy_uj() const { return energy_.value; }  // at the last settle()
  uint32_t kernels() const { return kernels_; }
  bool communicating() const { return !communications_.empty(); }
  // Of a kernel here: 1, or slowed by the communication beside it.
  double compute_rate() const;
  bool asleep() const { return asleep_; }

  void settle(int64_t now);
  // After settle(): what runs, and what is locked. update() makes it count; true: the clock changed.
  void kernel_started(const Activity& activity = {}) {
    ++kernels_;
    activities_.compute += activity.compute;
    activities_.memory += activity.memory;
  }
  void kernel_stopped(const Activity& activity = {}) {
    const bool last = --kernels_ == 0;
    activities_.compute = last ? 0 : activities_.compute - activity.compute;
    activities_.memory = last ? 0 : activities_.memory - activity.memory;
  }
  void communication_started(const Communication& communication);
  void communication_stopped(const Communication& communication);
  void wake();                                    // a context came up: out of P8 for a while
  void lock(uint32_t min_mhz, uint32_t max_mhz);  // 0, 0: unlocked
  bool update();
  // The governor's periodic look at the averaged power. False: nothing to watch any more, stop until something runs.
  bool tick(int64_t now);

  void write(GpuState& state) const;              // into the board page
  void keep_truth(Truth& truth, uint32_t index);  // from now on, as this GPU's

 private:
  double watts_at(double clock_mhz, bool computing) const;
  double clock_for(double watts) const;  // highest at which computation draws no more
  double target_mhz() const;
  bool computing() const { return kernels_ > 0; }
  void note_state();
  void roll(Integral& integral, int64_t from, int64_t to) const;

  const Platform* platform_;
  double draws_;  // times what the platform says
  int64_t settled_, idle_since_, refresh_;
  double clock_mhz_;
  double cap_mhz_;    // what the power governor allows
  double average_w_;  // over the governor's lag
  double slow_w_;     // over its long average
  double temperature_c_, watts_ = 0;
  uint32_t kernels_ = 0;
  Activity activities_{0, 0};  // of all of them together; they share the GPU
  uint32_t locked_min_mhz_ = 0, locked_max_mhz_ = 0;
  bool asleep_ = true, capped_ = false;
  std::multiset<Communication> communications_;  // of each that runs here
  Integral energy_{}, busy_{};
  Truth* truth_ = nullptr;
  Truth::State state_{};  // since settled_; kept for truth_ only
};

}  // namespace powerccl::physics
