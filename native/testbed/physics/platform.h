// SPDX-License-Identifier: Apache-2.0
// A platform file (native/testbed/emulator/platforms/*.conf): what the emulated server is made of and how it behaves.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "physics/collective_messages.h"

namespace powerccl::physics {

// Names and order as in abi/trace.h (powerccl_pattern).
enum class Pattern : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kSendReceive,
  kScatter,
  kGather,
  kAllToAll,
};
inline constexpr size_t kPatterns = 9;
const char* pattern_name(Pattern pattern);

// (size in bytes, value), ascending; linear in log2(size) between the points and constant outside.
using SizeCurve = std::vector<std::pair<double, double>>;
// (x, y), ascending; linear between the points and constant outside. A file may have a number in place of points.
using Line = std::vector<std::pair<double, double>>;

// Bus bandwidth as NCCL tests print it, latency included:
//   bandwidth(size) x ranks factor x [f >= knee(size): 1 + boost(size) * (max - f) / (max - knee)
//                                     f <  knee(size): (1 + boost(size)) * (f / knee)^fall(size)]
struct PatternModel {
  SizeCurve bandwidth_gbs;  // a power law between points; at the maximum clock and the platform's own number of GPUs
  SizeCurve knee_mhz, boost, fall;
  double base_latency_us = 10;  // no operation is shorter
};

// A collective that does not use NCCL's channels, relative to NCCL's defaults: its time, the power that communication
// adds, and its slowdown of concurrent computation. Empty: the same.
struct WayModel {
  SizeCurve time, power, slows;
};

// How NCCL's variables and a tuner's choices change a collective's time and power (tuning.cpp has the formula).
// Everything is relative to NCCL's default, for which the factor is exactly 1.
struct TuningModel {
  double latency_share = 0.8;  // of the time at the bandwidth curve's first point: what does not shrink with bandwidth
  double ll_latency = 0.65, ll128_latency = 0.8, tree_latency = 0.85, nvls_latency = 1.05;  // beside Simple and Ring
  double ll_bandwidth = 0.5, ll128_bandwidth = 0.92, tree_bandwidth = 0.8;
  double nvls_bandwidth = 0;           // 0: the platform has no NVLS
  bool ll128 = true;                   // enabled without NCCL_PROTO
  SizeCurve channel_half;              // channels with which half of the most bandwidth is reached; empty: no matter
  double channel_latency = 0;          // added share of latency for each doubling of channels
  double channel_power = 0;            // share of communication's power that goes with the number of channels
  double threads_exponent = 0;         // bandwidth ~ threads^this
  double buffer_gain = 0;              // added share of bandwidth for each doubling of the buffer
  double buffer_fill = 0;              // lost share when a channel's part of the data is one step of its buffer
  double socket_workers_exponent = 0;  // bandwidth ~ (channels x threads)^this; 0: no sockets here
  double socket_gain = 0;              // most that many sockets a thread add to one
  double socket_contention = 0;        // channels x threads at which the host's CPUs halve the bandwidth
  double socket_latency = 0;           // added share of latency for each doubling of sockets
  double p2p_disabled = 1,
         shm_disabled = 1;  // bandwidth without NVLink or PCIe peer access, then without shared memory
  double run_noise = 0.025, op_noise = 0.01;  // standard deviations, of a communicator and of an operation
  bool noise_always = false;                  // also where no variable is set
};

// What a kernel keeps busy, as a share of what a matrix product and a copy do: {1, 0} and {0, 1}.
struct Activity {
  double compute = 1, memory = 0;
};

struct Platform {
  std::string name;          // "t4x8"
  uint32_t fingerprint = 0;  // of all keys and values in force: other changes or another file, another number
  std::string gpu_name;      // as NVML prints it
  std::string driver_version;
  uint32_t gpus = 1;  // of all hosts
  uint32_t hosts = 1;
  double network_gbs = 0;         // between hosts, of each GPU's network adapter
  double network_latency_us = 0;  // from one host to the next
  double network_hop_us = 0;      // added to it along a tree, for 1 MiB: a hop begins when a part of the data is there
  uint64_t memory_bytes = 0;
  uint32_t multiprocessors = 1, compute_major = 7, compute_minor = 5;

  uint32_t clock_min_mhz = 0, clock_max_mhz = 0, clock_step_mhz = 15, memory_clock_mhz = 0, clock_idle_mhz = 0;
  double reference_clock_mhz = 0;   // declared durations hold at this clock
  double memory_bound_share = 0;    // of a kernel's time at the reference clock: does not scale with the clock
  double overlap_compute_rate = 1;  // a kernel's rate while the GPU also communicates

  double kernel_launch_us = 0, hostfunc_us = 0, memop_us = 0, event_us = 0, copy_launch_us = 0;
  double copy_host_gbs = 10, copy_device_gbs = 200;

  // Power in watts: P8 when idle for long, else static + leakage(T) + tree * fV^2 + what runs. A matrix product adds
  // compute * fV^2, a copy memory_static + memory * fV^2, and other kernels parts of both.
  double idle_p8_w = 0, idle_drop_ms = 0, static_w = 0, memory_static_w = 0;
  double tree_w = 0, compute_w = 0, memory_w = 0;  // W per MHz*V^2
  Activity kernel;                                 // of kernels that do not say what share of their time is memory's
  Line voltage_v;                                  // over MHz
  SizeCurve comm_w;                                // what communication adds, over the bytes of the operation
  double comm_clock_w = 0;                         // of it, W per MHz*V^2
  double leakage_w_per_kv = 0, leakage_reference_c = 0;  // per kelvin above the reference and volt
  double gpu_spread = 0;                                 // share by which GPUs draw more or less than the platform says
  Line gpu_draws;                                        // and times that they draw so much, over the GPU's number
  double ambient_c = 25, thermal_k_per_w = 0, thermal_tau_ms = 1000, start_temperature_c = 30;

  double power_limit_w = 0, peak_limit_w = 0;  // peak 0: none
  // The power governor. Under computation it compares the power averaged over `lag` with the limit. It steps the clock
  // down above limit + high, up below limit + low. If a long average exceeds the limit, the excess times `gain` lowers
  // both.
  double governor_period_ms = 10, governor_lag_ms = 25, governor_step_mhz = 15;
  double governor_low_w = 0, governor_high_w = 0;
  double governor_slow_ms = 1000, governor_slow_gain = 1;
  double governor_start_w = 0;  // where computation starts after a locked clock: the clock that draws this much

  double refresh_ms = 20;            // of NVML's power and energy readings
  double energy_read_us = 0;         // one read of the energy counter
  double set_clock_call_us = 0;      // one call, alone: the median
  bool set_clock_serialised = true;  // calls for different GPUs wait for each other
  Line clock_transition_us;          // from the call's return to the clock's change, over the target: the median
  // Standard deviations of the logarithms of both. 0.4: one call in a hundred takes 2.5 times the median.
  double set_clock_call_spread = 0, clock_transition_spread = 0;
  double set_clock_stall_us = 0;  // whatever runs on the GPU stands still for so long when a call changes its lock
  bool may_set_clocks = true;

  double link_scale = 1;  // of all bus bandwidths: the same server with faster or slower links

  uint32_t nccl_channels = 1, nccl_warps = 16;  // of a collective's kernel, as profiler plugins receive it

  std::array<PatternModel, kPatterns> patterns;
  WayModel ways[kCarriers - 1][kPatterns];  // by Carrier, without the first
  TuningModel tune;

  // Bus bandwidth in GB/s (10^9 bytes) that NCCL tests would print for an operation of `bytes` (NCCL tests' size).
  // Bus bandwidth is what does not depend on the number of ranks, and here it does not.
  double bus_bandwidth_gbs(Pattern pattern, double bytes, double clock_mhz, uint32_t nranks) const;
  // How long the operation takes from the last rank's arrival when all its GPUs hold `clock_mhz` (the slowest counts).
  double collective_ns(Pattern pattern, double bytes, double clock_mhz, uint32_t nranks) const;
  uint32_t host_of(uint32_t gpu) const { return gpu / (gpus / hosts); }
  uint32_t index_on_host(uint32_t gpu) const { return gpu % (gpus / hosts); }
  // How long the network holds up an operation of a communicator on so many hosts with `adapters` of its GPUs on each.
  // GPUs of a host join their data before it leaves: all-reduce, all-gather and reduce-scatter go from host to host.
  double network_ns(Pattern pattern, double bytes, uint32_t nranks, uint32_t of_hosts, uint32_t adapters) const;
  // What hops between hosts add: along a tree where the pattern has one, else from each host to the next.
  double network_latency_ns(Pattern pattern, double bytes, uint32_t of_hosts) const;
  double kernel_w(const Activity& activity, double clock_mhz) const;  // W added to an otherwise idle GPU
  // W that communicating `bytes` adds to an otherwise idle GPU at that clock.
  double communication_w(double bytes, double clock_mhz) const;
  double draws(uint32_t gpu) const;  // times that this GPU draws what the file says
  double volts(double clock_mhz) const;
  double fv2(double clock_mhz) const;               // MHz * V^2
  double transition_us(uint32_t target_mhz) const;  // 0: to no lock
  double snap_mhz(double clock_mhz) const;          // to a step, downwards, within the range
};

// The curve's value at a size; `otherwise` where it is empty.
double at_size(const SizeCurve& curve, double bytes, double otherwise);
// bus bandwidth = factor * size / time
double bus_factor(Pattern pattern, uint32_t nranks);

// Reads a platform file; on failure returns nothing and says why in `error` (with file and line). Changes may follow
// the path, in place of what the file says: "t4x8.conf:clock_transition_us=20000,link_scale=4".
std::optional<Platform> read_platform(const std::string& path, std::string& error);
// The same of a file's text and of changes one by one.
std::optional<Platform> parse_platform(const std::string& content, const std::string& file_path,
                                       const std::vector<std::string>& changes, std::string& error);

}  // namespace powerccl::physics
