// SPDX-License-Identifier: Apache-2.0
// Power, energy and the readings made of them.
#include <algorithm>
#include <cstring>

#include "model.h"
#include "physics/readings.h"

namespace powerccl::physics {
namespace {

TEST(Gpu, EnergyIsTheExactIntegralOfPower) {
  Platform platform = platform_or_fail("t4x8");
  platform.leakage_w_per_kv = 0;  // power is then constant between changes
  Model model(platform);
  const double idle_w = model.engine.gpu(0).watts();
  const double before = model.joules();
  model.advance_ms(123.456);
  EXPECT_NEAR(model.joules() - before, idle_w * 0.123456, 1e-9);
  model.hold = true;
  model.collective(Pattern::kAllReduce, 64 * kMiB);
  model.advance_ms(platform.kernel_launch_us * 1e-3);
  const double busy_w = model.engine.gpu(0).watts(), at = model.joules();
  EXPECT_GT(busy_w, idle_w);
  model.advance_ms(777);
  EXPECT_NEAR(model.joules() - at, busy_w * 0.777, 1e-9);
}

TEST(Gpu, LockedClockHoldsWhileComputingAndPowerFollowsIt) {
  Model model(platform_or_fail("t4x8"));
  model.lock(600);
  model.kernel(1000);
  model.advance_ms(200);
  EXPECT_EQ(model.engine.gpu(0).clock_mhz(), 600);
  const double low_w = model.engine.gpu(0).watts();
  model.lock(900);
  model.advance_ms(200);
  EXPECT_GT(model.engine.gpu(0).watts(), low_w + 8);
}

TEST(Gpu, ALockBetweenTwoStepsTakesTheLowerOne) {
  Model model(platform_or_fail("t4x8"));
  model.lock(500);
  model.kernel(100);
  model.advance_ms(10);
  EXPECT_EQ(model.engine.gpu(0).clock_mhz(), 495);
}

TEST(Gpu, ALockAboveThePowerLimitIsCapped) {
  Model model(platform_or_fail("t4x8"));
  model.lock(1590);
  model.kernel(5000);
  model.advance_ms(3000);
  const double joules = model.joules();
  model.advance_ms(1000);
  EXPECT_LT(model.joules() - joules, 80);
}

TEST(Gpu, ReadingsChangeOncePerRefreshPeriodAndLoseNothing) {
  Model model(platform_or_fail("h200x4"));
  auto board = std::make_unique<BoardPage>();
  fill_board(model.platform, "", model.clock_ns, *board);
  model.engine.publish(*board);
  uint64_t previous_mj = 0, changes = 0;
  double energy_from_power_mj = 0;
  const Time begun = model.clock_ns;
  while (model.clock_ns < begun + 2000 * kMs) {
    if (model.idle_or_new()) model.kernel(7);
    model.advance_ms(1);
    const Readings readings = read_gpu(*board, 0, static_cast<uint64_t>(model.clock_ns));
    if (readings.energy_mj != previous_mj) {
      if (previous_mj != 0) {
        ++changes;
        energy_from_power_mj += readings.power_mw * 0.1;
        EXPECT_NEAR(static_cast<double>(readings.energy_mj - previous_mj), readings.power_mw * 0.1, 2.5);
      }
      previous_mj = readings.energy_mj;
    }
  }
  EXPECT_GE(changes, 18u);
  EXPECT_LE(changes, 20u);
  EXPECT_GT(energy_from_power_mj, 100'000);
}

TEST(Gpu, NobodyReadsFurtherThanALateServerHasCome) {
  Model model(platform_or_fail("t4x8"));
  auto board = std::make_unique<BoardPage>();
  fill_board(model.platform, "", model.clock_ns, *board);
  model.engine.publish(*board);
  const auto read_mj = [&](double late_ms) {
    return read_gpu(*board, 0, static_cast<uint64_t>(model.clock_ns + static_cast<Time>(late_ms * kMs))).energy_mj;
  };
  model.kernel(40);
  model.advance_ms(4);
  uint64_t seen_mj = 0;
  for (int i = 0; i < 20; ++i) {
    seen_mj = std::max(seen_mj, read_mj(200));
    // In the middle of an advance, when some states are written and others are not.
    model.engine.from_outside([&](Time) { seen_mj = std::max(seen_mj, read_mj(200)); }, model.clock_ns + kMs);
    model.advance_ms(7);
    EXPECT_GE(read_mj(0) + 1, seen_mj) << i;
  }
}

TEST(Gpu, GpusOfAServerDrawALittleMoreOrLess) {
  for (const double spread : {0.0, 0.04}) {
    Platform platform = platform_or_fail("t4x8");
    platform.gpu_spread = spread;
    double least = 1e9, most = 0, sum = 0;
    for (uint32_t index = 0; index < 8; ++index) {
      Gpu gpu(platform, 0, index);
      gpu.lock(600, 600);
      gpu.kernel_started();
      gpu.update();
      least = std::min(least, gpu.watts());
      most = std::max(most, gpu.watts());
      sum += gpu.watts();
    }
    EXPECT_NEAR(most / least, 1 + 2 * spread, spread / 3);
    EXPECT_NEAR(sum / 8, (most + least) / 2, spread / 3 * most);
  }
}

TEST(Gpu, AGpuDrawsTheFactorThatThePlatformHasForIt) {
  Platform platform = platform_or_fail("t4x8");
  platform.gpu_draws = {{0, 1}, {1, 1.1}, {2, 0.9}};
  double watts[3];
  for (uint32_t index = 0; index < 3; ++index) {
    Gpu gpu(platform, 0, index);
    gpu.lock(600, 600);
    gpu.kernel_started();
    gpu.update();
    watts[index] = gpu.watts();
  }
  EXPECT_NEAR(watts[1] / watts[0], 1.1, 0.001);
  EXPECT_NEAR(watts[2] / watts[0], 0.9, 0.001);
}

TEST(Gpu, ACounterOfEnergyNeverGoesBack) {
  EnergyCounters counters;
  EXPECT_EQ(counters.at_least(0, 100), 100u);
  EXPECT_EQ(counters.at_least(0, 90), 100u);
  EXPECT_EQ(counters.at_least(1, 90), 90u);
  EXPECT_EQ(counters.at_least(0, 101), 101u);
}

TEST(Gpu, UtilizationIsTheShareOfTimeWithAKernel) {
  Model model(platform_or_fail("h200x4"));
  auto board = std::make_unique<BoardPage>();
  fill_board(model.platform, "", model.clock_ns, *board);
  model.engine.publish(*board);
  model.lock(1470);
  for (int i = 0; i < 40; ++i) {  // 10 of 20 ms
    model.kernel(10);
    model.advance_ms(20);
  }
  EXPECT_NEAR(read_gpu(*board, 0, static_cast<uint64_t>(model.clock_ns)).utilization_pct, 50, 3);
}

TEST(Gpu, GpusOfAPlatformHaveTheirOwnNames) {
  const Platform platform = platform_or_fail("t4x8");
  auto board = std::make_unique<BoardPage>();
  fill_board(platform, "", 0, *board);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(strlen(board->gpu[i].uuid), 40u);
    for (uint32_t j = 0; j < i; ++j) {
      EXPECT_STRNE(board->gpu[i].uuid, board->gpu[j].uuid);
      EXPECT_STRNE(board->gpu[i].pci, board->gpu[j].pci);
    }
  }
  EXPECT_NE(strstr(board->driver_version, "powerccl-emulator"), nullptr);
}

TEST(Gpu, GpusOfAHostHaveTheSameNamesInEveryRunAndOthersThanAnotherHosts) {
  const Platform platform = platform_or_fail("t4x8");
  auto one = std::make_unique<BoardPage>(), again = std::make_unique<BoardPage>(),
       other = std::make_unique<BoardPage>();
  fill_board(platform, "node1", 0, *one);
  fill_board(platform, "node1", 7, *again);
  fill_board(platform, "node2", 0, *other);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_STREQ(one->gpu[i].uuid, again->gpu[i].uuid);
    EXPECT_STREQ(one->gpu[i].pci, again->gpu[i].pci);
    EXPECT_LT(one->gpu[i].bus, 256u);
    EXPECT_STRNE(one->gpu[i].pci, other->gpu[i].pci);
    for (uint32_t j = 0; j < 8; ++j) EXPECT_STRNE(one->gpu[i].uuid, other->gpu[j].uuid);
  }
}

}  // namespace
}  // namespace powerccl::physics
