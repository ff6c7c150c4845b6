// SPDX-License-Identifier: Apache-2.0
// Boards against points of power that others published (docs/concepts/emulator-calibration.md names them), and the
// network between hosts against published runs of NCCL. Loads are what they keep busy: products, copies, and both.
#include <fstream>
#include <sstream>

#include "model.h"

namespace powerccl::physics {
namespace {

// A built-in platform with the lines of a board's file in place of its own.
Platform platform_with_board(const std::string& board) {
  const std::string folder = POWERCCL_PLATFORMS;
  std::ifstream lines(folder + "/boards/" + board + ".conf");
  EXPECT_TRUE(lines) << board;
  std::vector<std::string> changes{"idle_p8_w=10"};  // asleep: no load draws less
  for (std::string line; std::getline(lines, line);) {
    const std::string text = line.substr(0, line.find('#'));
    if (text.find('=') != std::string::npos) changes.push_back(text);
  }
  std::stringstream base;
  base << std::ifstream(folder + "/h200x4.conf").rdbuf();
  std::string error;
  const auto platform = parse_platform(base.str(), board, changes, error);
  EXPECT_TRUE(platform) << error;
  return platform.value_or(Platform{});
}

struct Point {
  uint32_t clock_mhz;
  double watts;
};

struct Load {
  const char* board;
  const char* load;
  Activity activity;
  std::vector<Point> published;
  double tolerance_pct = 4;
};

const Load kLoads[] = {
    {"a100-sxm", "FP64 products", {1, 0}, {{405, 113.3}, {810, 168.4}, {1005, 197.5}, {1110, 248.9}, {1305, 371.8}}},
    {"a100-sxm", "idle", {0, 0}, {{405, 61.6}, {810, 65.5}, {1110, 69.6}, {1290, 80.1}, {1410, 93.9}}},
    {"a100-sxm", "molecular dynamics", {0.38, 0.57}, {{810, 147.3}, {1110, 185.1}, {1290, 242.3}, {1410, 321.8}}, 6},
    {"a100-pcie", "pi solver", {0.99, 0}, {{1005, 135.3}, {1110, 152.4}, {1200, 179.3}, {1305, 225.0}, {1410, 296.0}}},
    {"a100-pcie", "copies", {0, 1}, {{1005, 145.2}, {1110, 155.3}, {1200, 169.9}, {1305, 190.0}, {1410, 228.0}}},
    {"a800-sxm", "prefill", {0.99, 0}, {{210, 103}, {450, 149.3}, {690, 195.5}, {930, 247.2}, {1170, 324}}, 5},
    {"h100-sxm",
     "FP64 products",
     {0.69, 0},
     {{345, 140.6}, {810, 242.4}, {1005, 289.0}, {1095, 338}, {1290, 439.2}},
     5},
    {"h100-sxm", "molecular dynamics", {0.17, 0.67}, {{810, 164.8}, {1035, 192.1}, {1260, 242.8}, {1410, 278.2}}, 5},
    {"h200-sxm", "FP64 products", {0.92, 0}, {{345, 161.3}, {810, 267.8}, {1005, 317.0}, {1155, 411.8}, {1305, 512.2}}},
    {"a40", "FP32 products", {1, 0}, {{600, 164.2}, {810, 191.9}, {1005, 217.6}, {1200, 238.2}, {1305, 279.9}}},
    {"v100-sxm", "dgemm", {0.84, 0.54}, {{870, 151.9}, {1005, 171.2}, {1095, 183.4}, {1185, 210.4}, {1275, 242.5}}, 5},
    {"v100-sxm", "stream", {0.03, 0.89}, {{870, 73.6}, {1005, 78.8}, {1095, 80.4}, {1230, 88.1}, {1380, 99.4}}},
    {"rtx-pro-6000", "pi solver", {0.96, 0.03}, {{1005, 86.1}, {1402, 115}, {1800, 152.4}, {2205, 227.2}, {2430, 246}}},
};

TEST(BoardCalibration, PowerByLoadAndClock) {
  for (const Load& load : kLoads) {
    const Platform platform = platform_with_board(load.board);
    for (const Point& point : load.published) {
      Gpu gpu(platform, 0);
      gpu.wake();
      gpu.lock(point.clock_mhz, point.clock_mhz);
      if (load.activity.compute + load.activity.memory > 0) gpu.kernel_started(load.activity);
      gpu.update();
      // The clock is a step of the platform's: what it draws at the published one is a straight line away.
      const double watts = gpu.watts() * platform.fv2(point.clock_mhz) / platform.fv2(gpu.clock_mhz());
      EXPECT_NEAR(watts, point.watts, point.watts * load.tolerance_pct / 100)
          << load.board << ", " << load.load << " at " << point.clock_mhz << " MHz";
    }
  }
}

// NCCL's all-reduce on GH200s of Alps, four a host with an adapter of 200 Gbit/s each.
TEST(NetworkCalibration, AllReduceOfManyHosts) {
  struct Row {
    uint32_t hosts;
    double mib, one_host_us, published_us;
  };
  const Row rows[] = {{2, 4, 43.3, 186},     {2, 256, 1224.5, 3317}, {4, 4, 43.3, 309.9},      {16, 16, 101, 1164.9},
                      {16, 64, 332.7, 2297}, {64, 4, 43.3, 761},     {64, 1024, 4760, 23910},  {128, 64, 332.7, 3575},
                      {512, 1, 18.3, 653.8}, {512, 64, 332.7, 4670}, {512, 256, 1224.5, 10518}};
  Platform platform = platform_or_fail("h100x8");
  platform.network_gbs = 25;
  platform.network_hop_us = 28;
  for (const Row& row : rows) {
    const double bytes = row.mib * kMiB;
    const double between_ns = platform.network_ns(Pattern::kAllReduce, bytes, 4 * row.hosts, row.hosts, 4);
    const double us = (std::max(row.one_host_us * 1e3, between_ns) +
                       platform.network_latency_ns(Pattern::kAllReduce, bytes, row.hosts)) /
                      1e3;
    EXPECT_NEAR(us, row.published_us, 0.25 * row.published_us) << row.hosts << " hosts, " << row.mib << " MiB";
  }
}

}  // namespace

// Big Red 200's nodes against what study E published (docs/concepts/emulator-calibration.md): links only, power is
// ours.
namespace {

constexpr double kGradients = 700e6;  // GPT-350M, 2 bytes a parameter

struct Row {
  double mib, two_nodes_us, one_node_us;
};

// The published table's times.
constexpr Row kPublished[] = {{16, 2990.5, 205.0},  {32, 7861.7, 331.5},  {48, 9115.2, 465.3},  {64, 14081, 617.9},
                              {80, 14998, 743.5},   {96, 18074, 876.4},   {112, 21282, 1023.2}, {128, 25198, 1139.8},
                              {144, 27169, 1222.3}, {160, 30548, 1364.1}, {176, 34752, 1359.6}, {192, 37054, 1470.5}};

TEST(A100Calibration, AllReduceByTime) {
  const Platform node = platform_or_fail("a100x4");
  const Platform nodes = platform_or_fail("a100x8-two-nodes");
  for (const Row& row : kPublished) {
    EXPECT_NEAR(node.collective_ns(Pattern::kAllReduce, row.mib * kMiB, 1410, 4) / 1e3, row.one_node_us,
                0.005 * row.one_node_us)
        << row.mib << " MiB";
    EXPECT_NEAR(nodes.collective_ns(Pattern::kAllReduce, row.mib * kMiB, 1410, 8) / 1e3, row.two_nodes_us,
                0.005 * row.two_nodes_us)
        << row.mib << " MiB";
  }
}

TEST(A100Calibration, WhatTrainingGathersAndScatters) {
  const Platform node = platform_or_fail("a100x4");
  const Platform nodes = platform_or_fail("a100x8-two-nodes");
  for (const Pattern pattern : {Pattern::kAllGather, Pattern::kReduceScatter}) {
    const double within_ms = node.collective_ns(pattern, kGradients, 1410, 4) / 1e6;
    EXPECT_GE(within_ms, 4);
    EXPECT_LE(within_ms, 5);
    EXPECT_NEAR(nodes.collective_ns(pattern, kGradients, 1410, 8) / 1e6, 62, 0.5);
  }
}

}  // namespace

// h200x4 against what was measured on lent H200s. Nothing about clocks other than the highest was measured.
namespace {

// On two H100s: 715 W at 1410 MHz of matrix products at the power limit, 534 W at 1980 MHz of decoding, 122 W idle.
TEST(H100Calibration, PowerOfProductsAndOfDecoding) {
  const Platform platform = platform_or_fail("h100x8");
  Gpu gpu(platform, 0);
  gpu.wake();
  gpu.update();
  EXPECT_NEAR(gpu.watts(), 122, 3);
  gpu.lock(1410, 1410);
  gpu.kernel_started();
  gpu.update();
  EXPECT_NEAR(gpu.watts(), 715, 15);
  gpu.kernel_stopped();
  gpu.lock(1980, 1980);
  gpu.kernel_started({.compute = 0.1, .memory = 1});
  gpu.update();
  EXPECT_NEAR(gpu.watts(), 534, 30);
}

double watts_of_all_reduce(Model& model, double bytes) {
  for (int i = 0; i < 200; ++i) {
    model.collective(Pattern::kAllReduce, bytes);
    model.finish();
  }
  // The power of the kernel itself: what lies between two launches is not part of the figure.
  model.collective(Pattern::kAllReduce, bytes);
  model.advance_ms(model.platform.kernel_launch_us * 1e-3 + 0.001);
  return model.engine.gpu(0).watts();
}

TEST(H200Calibration, Clocks) {
  const Platform platform = platform_or_fail("h200x4");
  EXPECT_EQ(platform.clock_min_mhz, 345u);
  EXPECT_EQ(platform.clock_max_mhz, 1980u);
  EXPECT_EQ(platform.clock_step_mhz, 15u);
  EXPECT_EQ(platform.refresh_ms, 100);
  EXPECT_EQ(platform.hostfunc_us, 40);
  EXPECT_EQ(platform.memop_us, 2);
}

TEST(H200Calibration, IdlePowers) {
  Model model(platform_or_fail("h200x4"));
  EXPECT_EQ(model.engine.gpu(0).clock_mhz(), 345);
  EXPECT_NEAR(model.engine.gpu(0).watts(), 80, 2);
  model.kernel(0.1);
  model.finish();
  model.advance_ms(10);
  EXPECT_EQ(model.engine.gpu(0).clock_mhz(), 1980);
  EXPECT_GE(model.engine.gpu(0).watts(), 120);
  EXPECT_LE(model.engine.gpu(0).watts(), 125);
}

TEST(H200Calibration, MatrixProductsDraw700WattsAt1470Mhz) {
  Model model(platform_or_fail("h200x4"));
  model.kernel(10'000);
  model.advance_ms(3'000);
  const double joules = model.joules();
  model.advance_ms(1'000);
  EXPECT_NEAR(model.joules() - joules, 700, 14);
  EXPECT_NEAR(model.engine.gpu(0).clock_mhz(), 1470, 15);
}

TEST(H200Calibration, AllReduceOverNvlink) {
  const struct {
    double mib, watts, gbs;
  } measured[] = {{1, 178, 36}, {16, 232, 220}, {256, 292, 301}};
  for (const auto& row : measured) {
    Model model(platform_or_fail("h200x4"));
    EXPECT_NEAR(model.platform.bus_bandwidth_gbs(Pattern::kAllReduce, row.mib * kMiB, 1980, 2), row.gbs,
                row.gbs * 0.01);
    EXPECT_NEAR(watts_of_all_reduce(model, row.mib * kMiB), row.watts, row.watts * 0.03) << row.mib << " MiB";
  }
}

TEST(H200Calibration, CollectivesSlowMatrixProducts) {
  // Of 256 MiB by NCCL's channels, on four GPUs: what a call adds to the products' time, and takes by itself.
  const struct {
    Pattern pattern;
    double added_us, alone_us;
  } measured[] = {{Pattern::kAllGather, 208.85, 656.87},
                  {Pattern::kAllReduce, 338.48, 1182.33},
                  {Pattern::kReduceScatter, 216.73, 657.18}};
  const Platform platform = platform_or_fail("h200x4");
  for (const auto& row : measured) {
    EXPECT_NEAR(1 - platform.overlap_compute_rate, row.added_us / row.alone_us, 0.03) << row.alone_us;
  }
}

TEST(H200Calibration, AllReduceOverSockets) {
  Model model(platform_or_fail("h200x4-sockets"));
  EXPECT_NEAR(model.platform.bus_bandwidth_gbs(Pattern::kAllReduce, 64 * kMiB, 1980, 4), 3.7, 0.04);
  for (const double mib : {1, 16, 64}) {
    const double watts = watts_of_all_reduce(model, mib * kMiB);
    EXPECT_GE(watts, 123);
    EXPECT_LE(watts, 135);
    model.finish();
  }
}

}  // namespace

}  // namespace powerccl::physics
