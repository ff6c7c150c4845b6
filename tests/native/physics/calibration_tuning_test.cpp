// SPDX-License-Identifier: Apache-2.0
// What NCCL's variables do to emulated collectives: nothing where none is set, what was measured on sockets, and the
// direction of everything else (docs/concepts/emulator-calibration.md has the table).
#include <random>

#include "model.h"
#include "physics/tuning.h"

namespace powerccl::physics {
namespace {

constexpr double kKiB = 1024;
constexpr uint32_t kRanks = 4;

struct Trial {
  uint32_t channels = 0;  // 0: the platform's
  uint32_t socket_threads = 0, sockets_per_thread = 0;
  uint64_t buffer_bytes = 0;
  uint32_t threads = 0;
  int algorithm = kRing, protocol = -1;  // -1: NCCL's
};

class Tuning {
 public:
  explicit Tuning(const std::string& name) : platform(platform_or_fail(name)) {}
  Method method(double bytes, const Trial& trial) const {
    Method made = default_method(platform, Pattern::kAllReduce, bytes);
    if (trial.channels) made.channels = default_channels(2 * bytes, trial.channels);
    if (trial.protocol >= 0) made.protocol = static_cast<uint8_t>(trial.protocol);
    made.algorithm = static_cast<uint8_t>(trial.algorithm);
    return made;
  }
  double ns(double bytes, const Trial& trial) const {
    NcclSettings settings{};
    settings.flags = NcclSettings::kTuned;
    settings.threads = trial.threads;
    settings.socket_threads = trial.socket_threads;
    settings.sockets_per_thread = trial.sockets_per_thread;
    settings.buffer_bytes = trial.buffer_bytes;
    return tuned_ns(platform, Pattern::kAllReduce, bytes, platform.clock_max_mhz, kRanks, method(bytes, trial),
                    settings);
  }
  double gbs(double bytes, const Trial& trial) const {
    return bytes * bus_factor(Pattern::kAllReduce, kRanks) / ns(bytes, trial);
  }
  double gain(double bytes, const Trial& trial) const { return ns(bytes, {}) / ns(bytes, trial); }
  // Of a GPU, over one operation.
  double joules(double bytes, const Trial& trial) const {
    const double mhz = platform.clock_max_mhz;
    const double factor = power_factor(platform, Pattern::kAllReduce, bytes, method(bytes, trial), method(bytes, {}));
    const double watts =
        platform.static_w + platform.tree_w * platform.fv2(mhz) + platform.communication_w(bytes, mhz) * factor;
    return watts * ns(bytes, trial) * 1e-9;
  }
  Platform platform;
};

TEST(TuningCalibration, DefaultsAreExactlyThePlatforms) {
  for (const std::string name : {"t4x8", "h200x4", "h200x4-sockets"}) {
    const Platform platform = platform_or_fail(name);
    for (size_t i = 0; i < kPatterns; ++i) {
      const auto pattern = static_cast<Pattern>(i);
      for (double bytes = 4; bytes < 1e9; bytes *= 3.7) {
        for (double mhz = platform.clock_min_mhz; mhz <= platform.clock_max_mhz; mhz += 155) {
          const Method usual = method_of(platform, pattern, bytes, 0, 0);
          EXPECT_EQ(usual, default_method(platform, pattern, bytes));
          EXPECT_EQ(tuned_ns(platform, pattern, bytes, mhz, 3, usual, {}),
                    platform.collective_ns(pattern, bytes, mhz, 3));
          EXPECT_EQ(power_factor(platform, pattern, bytes, usual, usual), 1);
          EXPECT_EQ(transfer_factor(platform, bytes, 3, {}), 1);
        }
      }
    }
  }
}

// A variable set to its default is as good as none, but for rounding.
TEST(TuningCalibration, VariablesAtTheirDefaultsChangeNothing) {
  for (const std::string name : {"t4x8", "h200x4", "h200x4-sockets"}) {
    const Tuning tuning(name);
    const Trial usual{tuning.platform.nccl_channels, 1, 1, 4 << 20, tuning.platform.nccl_warps * 32};
    for (const double bytes : {16 * kKiB, 1 * kMiB, 64 * kMiB}) EXPECT_NEAR(tuning.gain(bytes, usual), 1, 1e-9) << name;
  }
}

TEST(TuningCalibration, SocketsAsMeasured) {
  const Tuning tuning("h200x4-sockets");
  EXPECT_NEAR(tuning.gbs(64 * kMiB, {}), 3.7, 0.05);
  EXPECT_NEAR(tuning.gbs(64 * kMiB, {0, 2, 8, 8 << 20}), 10.8, 0.3);
  EXPECT_NEAR(tuning.gbs(64 * kMiB, {8, 4, 4, 8 << 20}), 11.7, 0.6);
  EXPECT_NEAR(tuning.joules(64 * kMiB, {0, 2, 8, 8 << 20}) / tuning.joules(64 * kMiB, {}), 5.0 / 14.4, 0.02);
}

// The best of 84 random trials: 15.7 GB/s at 64 MiB, twice the default at 1 MiB, nothing at 16 KiB.
TEST(TuningCalibration, RandomSearchFindsWhatItFound) {
  const Tuning tuning("h200x4-sockets");
  const auto best_gain = [&](double bytes, std::mt19937& random) {
    double best = 0;
    for (int i = 0; i < 84; ++i) {
      Trial trial{1u << (random() % 6), 1u << (random() % 5), 1u << (random() % 5), 65536ull << (random() % 11)};
      trial.sockets_per_thread = std::min(trial.sockets_per_thread, 64 / trial.socket_threads);
      best = std::max(best, tuning.gain(bytes, trial));
    }
    return best;
  };
  std::mt19937 random(1);
  EXPECT_NEAR(best_gain(64 * kMiB, random) * 3.7, 15.7, 1.6);
  EXPECT_NEAR(best_gain(1 * kMiB, random), 2.0, 0.25);
  EXPECT_LT(best_gain(16 * kKiB, random), 1.03);
}

TEST(TuningCalibration, SocketsChannelsAndBuffersDependOnEachOther) {
  const Tuning tuning("h200x4-sockets");
  // More threads help few channels and hurt many.
  EXPECT_GT(tuning.gain(64 * kMiB, {2, 8, 4}), 1.2 * tuning.gain(64 * kMiB, {2, 1, 4}));
  EXPECT_LT(tuning.gain(64 * kMiB, {16, 8, 4}), 0.8 * tuning.gain(64 * kMiB, {16, 1, 4}));
  // A large buffer helps two channels, less so when many share the data.
  const double with_few = tuning.gain(64 * kMiB, {2, 0, 0, 16 << 20}) / tuning.gain(64 * kMiB, {2});
  const double with_many = tuning.gain(64 * kMiB, {16, 0, 0, 16 << 20}) / tuning.gain(64 * kMiB, {16});
  EXPECT_GT(with_few, 1.1);
  EXPECT_LT(with_many, with_few - 0.03);
  // Too many sockets are only in a small message's way.
  EXPECT_LT(tuning.gain(16 * kKiB, {0, 4, 16}), 0.85);
}

TEST(TuningCalibration, ProtocolsAndTreesAreForSizes) {
  for (const std::string name : {"t4x8", "h200x4", "h200x4-sockets"}) {
    const Tuning tuning(name);
    const Trial ll{.protocol = kLl}, ll128{.protocol = kLl128}, simple{.protocol = kSimple};
    EXPECT_LT(tuning.gain(8 * kKiB, simple), 0.85) << name;
    EXPECT_LT(tuning.gain(256 * kKiB, ll), 0.95) << name;
    EXPECT_LT(tuning.gain(64 * kMiB, ll), 0.55) << name;
    EXPECT_GT(tuning.gain(64 * kMiB, ll128), 0.9) << name;
    EXPECT_LT(tuning.gain(64 * kMiB, ll128), 1.0) << name;
    EXPECT_GT(tuning.gain(8 * kKiB, {.algorithm = kTree}), 1.03) << name;
    EXPECT_LT(tuning.gain(64 * kMiB, {.algorithm = kTree}), 0.9) << name;
  }
}

// Behind PCIe 32 KiB are more than latency already.
TEST(TuningCalibration, LlReachesAsFarAsLatencyCounts) {
  EXPECT_GT(Tuning("h200x4").gain(32 * kKiB, {.protocol = kLl}), 1.0);
  EXPECT_GT(Tuning("h200x4-sockets").gain(32 * kKiB, {.protocol = kLl}), 1.0);
  EXPECT_LT(Tuning("t4x8").gain(32 * kKiB, {.protocol = kLl}), 1.0);
}

TEST(TuningCalibration, FewerChannelsOverNvlinkSaveEnergyUpTo16MiB) {
  const Tuning tuning("h200x4");
  for (const double bytes : {1 * kMiB, 16 * kMiB}) {
    const double saved = 1 - tuning.joules(bytes, {.channels = 8}) / tuning.joules(bytes, {});
    EXPECT_GE(saved, 0.03) << bytes;
    EXPECT_LE(saved, 0.07) << bytes;
  }
  EXPECT_GT(tuning.joules(256 * kMiB, {.channels = 8}), 1.03 * tuning.joules(256 * kMiB, {}));
  EXPECT_LT(tuning.gain(256 * kMiB, {.channels = 2}), 0.5);
}

TEST(TuningCalibration, ThreadsAndBuffersHaveTheirDirection) {
  const Tuning tuning("h200x4");
  EXPECT_LT(tuning.gain(64 * kMiB, {.threads = 128}), 0.75);
  EXPECT_LT(tuning.gain(64 * kMiB, {.buffer_bytes = 256 << 10}), 0.97);
}

TEST(TuningCalibration, NvlsIsWhereAPlatformHasIt) {
  std::string error;
  const auto with = read_platform(std::string(POWERCCL_PLATFORMS) + "/h200x4.conf:tune.nvls_bandwidth=1.3", error);
  ASSERT_TRUE(with) << error;
  const Method nvls{kNvls, kSimple, 16}, ring{kRing, kSimple, 16};
  NcclSettings tuned{};
  tuned.flags = NcclSettings::kTuned;
  const auto ns = [&](const Method& method) {
    return tuned_ns(*with, Pattern::kAllReduce, 256 * kMiB, 1980, 4, method, tuned);
  };
  EXPECT_NEAR(ns(ring) / ns(nvls), 1.3, 0.02);
}

// Four H200s, NCCL 2.30.7 (evidence/results/ways-h200x4.json): microseconds and mJ of a GPU, ordinary buffers and
// otherwise. 122 W: idle with a context.
TEST(TuningCalibration, WaysAreBesideNcclsDefaultsAsMeasured) {
  const Platform platform = platform_or_fail("h200x4");
  constexpr double kIdleW = 122;
  const struct {
    Pattern pattern;
    double mib;
    Carrier carrier;
    double plain_us, plain_mj, us, mj;
  } measured[] = {
      {Pattern::kAllGather, 16, Carrier::kSymmetricKernel, 64.02, 14.42, 44.57, 8.41},
      {Pattern::kAllGather, 64, Carrier::kSymmetricKernel, 186.05, 50.65, 157.68, 36.70},
      {Pattern::kAllGather, 256, Carrier::kSymmetricKernel, 656.87, 191.43, 604.24, 142.21},
      {Pattern::kAllGather, 16, Carrier::kCopyEngines, 64.02, 14.42, 80.03, 13.72},
      {Pattern::kAllGather, 64, Carrier::kCopyEngines, 186.05, 50.65, 185.42, 42.25},
      {Pattern::kAllGather, 256, Carrier::kCopyEngines, 656.87, 191.43, 595.73, 150.16},
      {Pattern::kReduceScatter, 16, Carrier::kSymmetricKernel, 57.90, 12.19, 51.84, 9.42},
      {Pattern::kReduceScatter, 256, Carrier::kSymmetricKernel, 657.18, 191.53, 735.32, 166.63},
      {Pattern::kAllReduce, 16, Carrier::kSymmetricKernel, 98.50, 23.18, 95.53, 17.20},
      {Pattern::kAllReduce, 16, Carrier::kFewestBlocks, 98.50, 23.18, 96.30, 17.42},
      {Pattern::kAllReduce, 256, Carrier::kSymmetricKernel, 1182.33, 349.22, 1386.61, 304.88},
  };
  for (const auto& each : measured) {
    const double bytes = each.mib * kMiB;
    const Method usual = default_method(platform, each.pattern, bytes);
    const Method other =
        method_of(platform, each.pattern, bytes, method_byte(kRing, kSimple, each.carrier), uint8_t{0});
    const auto ns = [&](const Method& method) { return tuned_ns(platform, each.pattern, bytes, 1980, 4, method, {}); };
    EXPECT_NEAR(ns(other) / ns(usual), each.us / each.plain_us, 0.01);
    const double added_w = each.plain_mj * 1e3 / each.plain_us - kIdleW;
    const double watts = kIdleW + added_w * power_factor(platform, each.pattern, bytes, other, usual);
    EXPECT_NEAR(watts * each.us * 1e-3, each.mj, 0.03 * each.mj) << pattern_name(each.pattern) << " " << each.mib;
  }
}

// What a call adds beside matrix products, in microseconds, against what NCCL's channels add: the same four H200s.
TEST(TuningCalibration, WaysSlowComputationAsMeasured) {
  const Platform platform = platform_or_fail("h200x4");
  const struct {
    double mib;
    Carrier carrier;
    double plain_us, plain_added_us, us, added_us;
  } measured[] = {
      {16, Carrier::kCopyEngines, 64.02, 57.90, 80.03, 67.01},
      {64, Carrier::kCopyEngines, 186.05, 116.03, 185.42, 154.57},
      {256, Carrier::kCopyEngines, 656.87, 208.85, 595.73, 87.25},
      {256, Carrier::kSymmetricKernel, 656.87, 208.85, 604.24, 162.47},
  };
  for (const auto& each : measured) {
    const Method other = method_of(platform, Pattern::kAllGather, each.mib * kMiB,
                                   method_byte(kRing, kSimple, each.carrier), uint8_t{0});
    const double slows = slowing_factor(platform, Pattern::kAllGather, each.mib * kMiB, other);
    EXPECT_NEAR(slows * each.us / each.plain_us, each.added_us / each.plain_added_us, 0.01) << each.mib;
  }
  EXPECT_EQ(slowing_factor(platform, Pattern::kAllGather, kMiB, default_method(platform, Pattern::kAllGather, kMiB)),
            1);
}

TEST(TuningCalibration, PeerAccessOffIsSlow) {
  const Platform platform = platform_or_fail("h200x4");
  const Method usual = default_method(platform, Pattern::kAllReduce, 64 * kMiB);
  NcclSettings off{};
  off.flags = NcclSettings::kTuned | NcclSettings::kP2pDisabled;
  const auto ns = [&] { return tuned_ns(platform, Pattern::kAllReduce, 64 * kMiB, 1980, 4, usual, off); };
  const double through_host = ns();
  off.flags |= NcclSettings::kShmDisabled;
  EXPECT_GT(through_host, 6 * platform.collective_ns(Pattern::kAllReduce, 64 * kMiB, 1980, 4));
  EXPECT_GT(ns(), 6 * through_host);
}

}  // namespace
}  // namespace powerccl::physics
