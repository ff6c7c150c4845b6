// SPDX-License-Identifier: Apache-2.0
// Boards against points of power that others published (docs/concepts/emulator-calibration.md names them), and the
// network between hosts against published runs of NCCL. Loads are what they keep busy: products, copies, and both.
#include <cmath>
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
}  // namespace powerccl::physics
