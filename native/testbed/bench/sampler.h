// SPDX-License-Identifier: Apache-2.0
// Samples energy, power and clock of all GPUs on one thread of the supervising process, never in a timed path.
//
// Energy counters move in steps (every 20 to 100 ms), so energy over a stretch of time comes from the updates seen. For
// a steady loop it is power between the first and the last update inside it. For an arbitrary stretch it is a straight
// line between neighbouring updates.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/board.h"
#include "device/nvml_sample.h"

namespace powerccl::bench {

// One update of a GPU's energy counter.
struct EnergyUpdate {
  uint64_t time_ns;   // in the middle between the reading that showed it and the one before
  uint64_t slack_ns;  // and so much earlier or later at most
  double joules;      // since an arbitrary start
};

// What a stretch of time tells about all GPUs together.
struct Window {
  std::string source;  // "counter", "power", or "" and then `reason`
  std::string reason;
  double watts_per_gpu = 0, watts_all_gpus = 0;
  double window_s = 0, updates = 0, uncertainty_pct = 0;  // means over GPUs
  std::optional<double> clock_mean_mhz, clock_min_mhz, clock_max_mhz, temperature_c;
  std::optional<unsigned long long> throttle_reasons;
};

struct SteadyPower {
  double watts, window_s;
  int updates;         // periods between the first and the last update
  double uncertainty;  // of the power, as a fraction, from how exactly the updates' moments are known
};
// Mean power of a steady load, from the updates inside [from, to]; nothing if there are not two.
std::optional<SteadyPower> steady_power(const std::vector<EnergyUpdate>& updates, uint64_t from_ns, uint64_t to_ns);
// Energy of [from, to] on straight lines between updates. Nothing if the updates do not cover it. Nothing either if
// it is shorter than two of their usual distances: the figure would be of its surroundings.
std::optional<double> joules_between(const std::vector<EnergyUpdate>& updates, uint64_t from_ns, uint64_t to_ns);

class Sampler {
 public:
  // GPUs as `board` names them. Without NVML the sampler exists and answers with the reason.
  Sampler(const Board& board, int pause_ms);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  void start();
  void stop();
  bool counts() const;  // each GPU has an energy counter
  bool running() const { return thread_.joinable(); }
  Window window(uint64_t from_ns, uint64_t to_ns);
  // Sum over all GPUs; nothing if it is not known.
  std::optional<double> joules_all_gpus(uint64_t from_ns, uint64_t to_ns);
  // Waits until each counter has moved after `ns`, at most 300 ms.
  void wait_past(uint64_t ns);
  void forget_before(uint64_t ns);

  std::string driver() const { return sampling_.driver; }
  // Active NVLinks of each GPU: "18", or "12 12 4 4" where they differ. Nothing if NVML does not say.
  std::optional<std::string> nvlinks() const;
  std::string emulated_platform() const { return sampling_.emulated_platform; }  // "" for real GPUs
  std::optional<int> nvml_index(int rank) const;
  // Failures that NVML answered while it was sampled, once it had worked: "" or the first one's text.
  std::string trouble();

 private:
  struct ClockSample {
    uint64_t time_ns;
    unsigned int mhz;
  };
  struct Gpu {
    const device::SampledGpu* device = nullptr;  // null: NVML does not know it
    bool counts = false, reads_power = false;
    uint64_t seen_ns = 0;
    int64_t counter_uj = 0;
    double power_joules = 0, last_watts = 0;  // power integrated by us, where there is no counter
    std::vector<EnergyUpdate> updates;
    std::vector<ClockSample> clocks;
    std::optional<double> temperature_c;
    std::optional<unsigned long long> throttle_reasons;
  };
  void loop();
  void sample(Gpu& gpu, bool slow_ones_too);
  void sample_energy(Gpu& gpu);
  const device::SampledGpu* find(const RankAbout& about) const;
  std::optional<int64_t> read(const Gpu& gpu, device::Metric metric, device::Error* error = nullptr) const;

  device::Sampling sampling_;
  std::string reason_, trouble_;
  int pause_ms_;
  std::mutex mutex_;
  std::vector<Gpu> gpus_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace powerccl::bench
