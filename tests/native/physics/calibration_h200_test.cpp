// SPDX-License-Identifier: Apache-2.0
// h200x4 against what was measured on lent H200s. Nothing about clocks other than the highest was measured.
#include <cmath>

#include "model.h"

namespace powerccl::physics {
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
