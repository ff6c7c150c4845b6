// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "model.h"

namespace powerccl::physics {
namespace {

std::string text_of(const std::string& name) {
  std::ifstream file(std::string(POWERCCL_PLATFORMS) + "/" + name + ".conf");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What reading this text says; empty: it was accepted.
std::string complaint(const std::string& text) {
  const std::string path = testing::TempDir() + "platform-" + std::to_string(getpid()) + ".conf";
  std::ofstream(path) << text;
  std::string error;
  const auto platform = read_platform(path, error);
  std::remove(path.c_str());
  EXPECT_EQ(platform.has_value(), error.empty());
  return error;
}

TEST(Platform, SeveralHostsNeedANetworkAndEvenShares) {
  const auto error_of = [](const char* changes) {
    std::string error;
    EXPECT_FALSE(read_platform(std::string(POWERCCL_PLATFORMS) + "/t4x8.conf" + changes, error));
    return error;
  };
  EXPECT_NE(error_of(":gpus=16,hosts=3,network_gbs=1").find("hosts must divide gpus"), std::string::npos);
  EXPECT_NE(error_of(":gpus=16,hosts=2").find("network_gbs is missing"), std::string::npos);
  EXPECT_NE(error_of(":gpus=65").find("gpus must be 1 to 64"), std::string::npos);
  const Platform two = platform_or_fail("t4x8", ":gpus=16,hosts=2,network_gbs=1,network_latency_us=5");
  EXPECT_EQ(two.host_of(7), 0u);
  EXPECT_EQ(two.host_of(8), 1u);
  EXPECT_EQ(two.index_on_host(8), 0u);
  EXPECT_DOUBLE_EQ(two.network_latency_ns(Pattern::kAllReduce, 1e6, 8), 2 * 3 * 5e3) << "up and down a tree";
  EXPECT_DOUBLE_EQ(two.network_latency_ns(Pattern::kAllGather, 1e6, 8), 7 * 5e3) << "along a ring";
  const Platform filled =
      platform_or_fail("t4x8", ":gpus=16,hosts=2,network_gbs=1,network_latency_us=5,network_hop_us=30");
  EXPECT_DOUBLE_EQ(filled.network_latency_ns(Pattern::kAllReduce, 1 << 20, 2), 2 * 35e3) << "a part of the data first";
  // Each host sends half of what its GPUs have joined, and receives as much.
  EXPECT_DOUBLE_EQ(two.network_ns(Pattern::kAllReduce, 8e6, 16, 2, 8), 1e6);
  EXPECT_DOUBLE_EQ(two.network_ns(Pattern::kAllToAll, 8e6, 16, 2, 8), 8e6 * 15 / 16 / 8);
}

TEST(PlatformFile, TheBuiltInOnesRead) {
  for (const char* name : {"t4x8", "h200x4", "h200x4-sockets", "a100x4", "a100x8-two-nodes"})
    EXPECT_EQ(platform_or_fail(name).name, name);
}

TEST(PlatformFile, EveryFigureSaysWhereItIsFrom) {
  for (const char* name : {"t4x8", "h200x4", "h200x4-sockets"}) {
    const std::string text = text_of(name);
    EXPECT_NE(text.find("modelled"), std::string::npos);
    EXPECT_NE(text.find("measured"), std::string::npos);
  }
}

TEST(PlatformFile, AMissingFileIsNamedWithAHint) {
  std::string error;
  EXPECT_FALSE(read_platform("/nowhere/x.conf", error));
  EXPECT_NE(error.find("/nowhere/x.conf"), std::string::npos);
  EXPECT_NE(error.find("hint:"), std::string::npos);
}

TEST(PlatformFile, WaitsForNoFileThatIsNone) {
  const std::string fifo = testing::TempDir() + "platform-" + std::to_string(getpid()) + ".fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero")}) {
    std::string error;
    EXPECT_FALSE(read_platform(path, error));
    EXPECT_EQ(error.find(path + ": cannot be read: not a regular file"), 0u) << error;
  }
  std::remove(fifo.c_str());
  EXPECT_NE(complaint(std::string(300 * 1024, '\n')).find("it is larger than 262144 bytes"), std::string::npos);
}

TEST(PlatformFile, AKeyInAMessageDoesNothingToATerminal) {
  EXPECT_EQ(complaint("\x1b[31m = 1\n").find('\x1b'), std::string::npos);
}

TEST(PlatformFile, WrongLinesAreNamedByNumber) {
  const std::string sound = text_of("t4x8");
  const auto lines = static_cast<size_t>(std::count(sound.begin(), sound.end(), '\n'));
  const std::string next = ":" + std::to_string(lines + 1) + ":";
  for (const std::string line : {"no_such_key = 1", "gpus = 8", "just words"}) {
    EXPECT_NE(complaint(sound + line + "\n").find(next), std::string::npos) << line;
  }
}

TEST(PlatformFile, BadValuesAreRefused) {
  const std::string sound = text_of("t4x8");
  EXPECT_EQ(complaint(sound), "");
  const struct {
    const char *from, *to;
  } changes[] = {
      {"gpus = 8", "gpus = 65"},
      {"gpus = 8", "gpus = many"},
      {"gpus = 8", "gpus = 2.5"},
      {"clock_max_mhz = 1590", "clock_max_mhz = 200"},
      {"clock_step_mhz = 15", "clock_step_mhz = 0"},
      {"power_limit_w = 70", "power_limit_w = 0"},
      {"refresh_ms = 20", "refresh_ms = 0"},
      {"voltage_v = 700:0.70", "voltage_v = 2000:0.70"},
      {"broadcast.bandwidth_gbs = 8K:0.23", "broadcast.bandwidth_gbs = 8K:0"},
      {"governor_low_w = -2", "governor_low_w = 20"},
      {"memory = 15G", "memory = -1G"},
      {"set_clock_serialised = 1", "set_clock_serialised = yes"},
      {"clock_transition_us = 1000", "clock_transition_us = 300:1000 1590:-1"},
      {"clock_transition_us = 1000", "clock_transition_us = -1"},
      {"clock_transition_us = 1000", "clock_transition_us = 1000\nclock_transition_spread = 9"},
      {"clock_transition_us = 1000", "clock_transition_us = 1000\nset_clock_stall_us = -1"},
  };
  for (const auto& change : changes) {
    std::string text = sound;
    const size_t at = text.find(change.from);
    ASSERT_NE(at, std::string::npos) << change.from;
    text.replace(at, strlen(change.from), change.to);
    EXPECT_NE(complaint(text), "") << change.to;
  }
}

TEST(PlatformFile, ATruncatedFileIsRefused) {
  const std::string sound = text_of("t4x8");
  EXPECT_NE(complaint(sound.substr(0, sound.find("power_limit_w"))), "");
  EXPECT_NE(complaint(sound.substr(0, sound.find("all_to_all.bandwidth"))), "");
}

TEST(PlatformFile, ChangesBehindThePathReplaceWhatItSays) {
  const std::string path = std::string(POWERCCL_PLATFORMS) + "/t4x8.conf";
  std::string error;
  const auto changed =
      read_platform(path + ":clock_transition_us=20000, set_clock_call_us=4500,comm_w=4K:1 64K:2,link_scale=4", error);
  ASSERT_TRUE(changed) << error;
  EXPECT_EQ(changed->transition_us(600), 20000);
  EXPECT_EQ(changed->set_clock_call_us, 4500);
  EXPECT_EQ(changed->comm_w.back().second, 2);
  const Platform as_it_is = platform_or_fail("t4x8");
  EXPECT_DOUBLE_EQ(changed->bus_bandwidth_gbs(Pattern::kAllReduce, 64 * kMiB, 1590, 8),
                   4 * as_it_is.bus_bandwidth_gbs(Pattern::kAllReduce, 64 * kMiB, 1590, 8));
  const struct {
    const char *changes, *says;
  } wrong[] = {{"no_such_key=1", "no_such_key: unknown key"},
               {"gpus=8,gpus=4", "given twice"},
               {"gpus=many", "gpus: value not understood"},
               {"gpus", "not `key = value`"},
               {"link_scale=0", "link_scale must be above 0"}};
  for (const auto& [changes, says] : wrong) {
    EXPECT_FALSE(read_platform(path + ":" + changes, error)) << changes;
    EXPECT_NE(error.find(says), std::string::npos) << error;
  }
}

TEST(PlatformFile, FingerprintIsOfWhatIsInForce) {
  std::string error;
  const std::string path = std::string(POWERCCL_PLATFORMS) + "/t4x8.conf";
  const auto plain = read_platform(path, error), same = read_platform(path + ":gpus=8", error);
  const auto fewer = read_platform(path + ":gpus=4", error);
  ASSERT_TRUE(plain && same && fewer) << error;
  EXPECT_EQ(plain->fingerprint, same->fingerprint);
  EXPECT_NE(plain->fingerprint, fewer->fingerprint);
}

TEST(Bandwidth, BusFactorsAreNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kReduceScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllToAll, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kBroadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kSendReceive, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kAllReduce, 1), 0);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::kBroadcast, 1), 1);
}

TEST(Bandwidth, TinyOperationsTakeTheBaseLatency) {
  const Platform platform = platform_or_fail("t4x8");
  for (size_t i = 0; i < kPatterns; ++i) {
    const auto pattern = static_cast<Pattern>(i);
    const double base_ns = platform.patterns[i].base_latency_us * 1e3;
    EXPECT_DOUBLE_EQ(platform.collective_ns(pattern, 0, 1590, 8), base_ns);
    EXPECT_GE(platform.collective_ns(pattern, 4, 1590, 8), base_ns);
    EXPECT_LE(platform.collective_ns(pattern, 4, 1590, 8), 3 * base_ns);
  }
}

TEST(Bandwidth, LargerOperationsTakeLongerAtEveryClock) {
  const Platform platform = platform_or_fail("t4x8");
  for (size_t i = 0; i < kPatterns; ++i) {
    for (const double clock : {300, 450, 750, 1200, 1590}) {
      double previous = 0;
      for (double bytes = 1024; bytes <= 1e9; bytes *= 1.5) {
        const double ns = platform.collective_ns(static_cast<Pattern>(i), bytes, clock, 8);
        EXPECT_GE(ns, previous * (1 - 1e-9))
            << pattern_name(static_cast<Pattern>(i)) << " " << bytes << " at " << clock;
        previous = ns;
      }
    }
  }
}

}  // namespace
}  // namespace powerccl::physics
