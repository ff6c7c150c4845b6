// SPDX-License-Identifier: Apache-2.0
// time = latency x l + (plain time - latency) / b, where l and b are 1 for NCCL's defaults. Both are the product of
// what each parameter does, divided by the same product of the defaults.
#include "physics/tuning.h"

#include <algorithm>
#include <cmath>

namespace powerccl::physics {
namespace {

constexpr double kDefaultBufferBytes = 4 << 20;
constexpr double kStepsOfBuffer = 8;

double traffic_of(Pattern pattern, double bytes) {
  return pattern == Pattern::kAllReduce ? 2 * bytes : bytes;
}

struct Sockets {
  double workers;     // threads that read and write, over all channels
  double per_thread;  // sockets of each
};

Sockets sockets_of(const Method& method, const NcclSettings& settings) {
  const uint32_t threads = std::max(1u, settings.socket_threads);
  return {static_cast<double>(method.channels * threads),
          static_cast<double>(std::max(1u, settings.sockets_per_thread))};
}

double latency_of(const TuningModel& model, const Method& method, const NcclSettings& settings) {
  double latency = 1;
  if (method.protocol == kLl) latency *= model.ll_latency;
  if (method.protocol == kLl128) latency *= model.ll128_latency;
  if (method.algorithm == kTree) latency *= model.tree_latency;
  if (method.algorithm == kNvls) latency *= model.nvls_latency;
  latency *= 1 + model.channel_latency * std::log2(method.channels);
  if (model.socket_workers_exponent > 0) {
    const Sockets sockets = sockets_of(method, settings);
    latency *= 1 + model.socket_latency * std::log2(sockets.workers * sockets.per_thread);
  }
  return latency;
}

// Large buffers pay as long as a channel's part of the data fills several of their steps.
double buffer_factor(const TuningModel& model, double bytes_of_channel, const NcclSettings& settings) {
  const double buffer = settings.buffer_bytes == 0 ? kDefaultBufferBytes : static_cast<double>(settings.buffer_bytes);
  const double doublings = std::clamp(std::log2(buffer / kDefaultBufferBytes), -4.0, 2.0);
  const double fill = std::max(1.0, bytes_of_channel / (buffer / kStepsOfBuffer));
  return (1 + model.buffer_gain * doublings) / (1 + model.buffer_fill / fill);
}

double socket_factor(const TuningModel& model, const Sockets& sockets) {
  if (model.socket_workers_exponent <= 0) return 1;
  double factor = std::pow(sockets.workers, model.socket_workers_exponent);
  factor *= 1 + model.socket_gain * (1 - 1 / sockets.per_thread);
  if (model.socket_contention > 0) factor /= 1 + std::pow(sockets.workers / model.socket_contention, 2);
  return factor;
}

double bandwidth_of(const Platform& platform, double bytes, uint32_t ranks, const Method& method,
                    const NcclSettings& settings) {
  const TuningModel& model = platform.tune;
  const double channels = method.channels;
  double bandwidth = 1;
  if (method.protocol == kLl) bandwidth *= model.ll_bandwidth;
  if (method.protocol == kLl128) bandwidth *= model.ll128_bandwidth;
  if (method.algorithm == kTree) bandwidth *= model.tree_bandwidth;
  if (method.algorithm == kNvls) bandwidth *= model.nvls_bandwidth;
  bandwidth *= channels / (channels + at_size(model.channel_half, bytes, 0));
  const double usual_threads = platform.nccl_warps * 32.0;
  const double threads = settings.threads == 0 ? usual_threads : settings.threads;
  bandwidth *= std::pow(threads / usual_threads, model.threads_exponent);
  bandwidth *= buffer_factor(model, bytes / ranks / channels, settings);
  bandwidth *= socket_factor(model, sockets_of(method, settings));
  if (settings.flags & NcclSettings::kP2pDisabled) {
    bandwidth *= model.p2p_disabled;
    if (settings.flags & NcclSettings::kShmDisabled) bandwidth *= model.shm_disabled;
  }
  return bandwidth;
}

// Null: by channels.
const WayModel* way_of(const Platform& platform, Pattern pattern, const Method& method) {
  if (method.carrier == Carrier::kChannels) return nullptr;
  return &platform.ways[static_cast<size_t>(method.carrier) - 1][static_cast<size_t>(pattern)];
}

}  // namespace

Method default_method(const Platform& platform, Pattern pattern, double bytes) {
  const double traffic = traffic_of(pattern, bytes);
  return {kRing, default_protocol(traffic), default_channels(traffic, platform.nccl_channels)};
}

Method method_of(const Platform& platform, Pattern pattern, double bytes, uint8_t method, uint8_t channels) {
  Method made = default_method(platform, pattern, bytes);
  if (method != 0) {
    made.algorithm = (method >> 4) & 7;
    made.protocol = method & 3;
    made.carrier = static_cast<Carrier>((method >> 2) & 3);
  }
  if (channels != 0) made.channels = channels;
  return made;
}

double tuned_ns(const Platform& platform, Pattern pattern, double bytes, double clock_mhz, uint32_t ranks,
                const Method& method, const NcclSettings& settings) {
  const double plain_ns = platform.collective_ns(pattern, bytes, clock_mhz, ranks);
  const Method usual = default_method(platform, pattern, bytes);
  if (const WayModel* way = way_of(platform, pattern, method)) return plain_ns * at_size(way->time, bytes, 1);
  if (method == usual && !(settings.flags & NcclSettings::kTuned)) return plain_ns;
  const TuningModel& model = platform.tune;
  const PatternModel& curves = platform.patterns[static_cast<size_t>(pattern)];
  const double shortest_ns = platform.collective_ns(pattern, curves.bandwidth_gbs.front().first, clock_mhz, ranks);
  const double latency_ns = std::min(plain_ns, model.latency_share * shortest_ns);
  const double slower = latency_of(model, method, settings) / latency_of(model, usual, NcclSettings{});
  const double faster = bandwidth_of(platform, bytes, ranks, method, settings) /
                        bandwidth_of(platform, bytes, ranks, usual, NcclSettings{});
  const double base_ns = curves.base_latency_us * 1e3;
  return std::max(base_ns, latency_ns * slower + (plain_ns - latency_ns) / faster);
}

double transfer_factor(const Platform& platform, double bytes, uint32_t ranks, const NcclSettings& settings) {
  if (!(settings.flags & NcclSettings::kTuned)) return 1;
  const Method usual = default_method(platform, Pattern::kSendReceive, bytes);
  return bandwidth_of(platform, bytes, ranks, usual, settings) /
         bandwidth_of(platform, bytes, ranks, usual, NcclSettings{});
}

double power_factor(const Platform& platform, Pattern pattern, double bytes, const Method& method,
                    const Method& usual) {
  if (const WayModel* way = way_of(platform, pattern, method)) return at_size(way->power, bytes, 1);
  if (method.channels == usual.channels) return 1;
  const double more = static_cast<double>(method.channels) / usual.channels - 1;
  return std::max(0.0, 1 + platform.tune.channel_power * more);
}

double slowing_factor(const Platform& platform, Pattern pattern, double bytes, const Method& method) {
  const WayModel* way = way_of(platform, pattern, method);
  return way == nullptr ? 1 : at_size(way->slows, bytes, 1);
}

}  // namespace powerccl::physics
