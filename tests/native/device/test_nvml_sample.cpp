// SPDX-License-Identifier: Apache-2.0
#include "device/nvml_sample.h"
#include "support.h"

using namespace powerccl::device;

namespace {

class NvmlSample : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.clear();
    setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
  }
  void TearDown() override { sampling_close(&sampling); }
  int64_t read(unsigned gpu, Metric metric) {
    int64_t value = -1;
    EXPECT_EQ(sample(&sampling, &sampling.gpu[gpu], metric, &value, &error), kOk) << error.text;
    return value;
  }

  FakeNvml& fake = FakeNvml::instance();
  Sampling sampling;
  Error error;
};

TEST_F(NvmlSample, ListsGpusAndReadsEachMetricInItsUnit) {
  ASSERT_EQ(sampling_open(&sampling, &error), kOk) << error.text;
  ASSERT_EQ(sampling.gpu_count, 2u);
  EXPECT_EQ(sampling.gpu[1].uuid, fake_uuid(1));
  EXPECT_STREQ(sampling.driver, "999.1");
  EXPECT_FALSE(sampling.emulated);
  EXPECT_TRUE(sampling.gpu[0].power_is_instant);
  EXPECT_EQ(read(1, kPowerMw), 30001);
  EXPECT_EQ(read(0, kEnergyUj), 1001000) << "NVML counts in mJ";
  EXPECT_EQ(read(0, kSmClockMhz), 1590);
  EXPECT_EQ(read(0, kMemClockMhz), 5000);
  EXPECT_EQ(read(0, kTemperatureC), 41);
  EXPECT_EQ(read(0, kThrottleReasons), 0x20);
  EXPECT_EQ(read(0, kUtilizationPct), 77);
  EXPECT_EQ(sampling.gpu[0].power_limit_mw, 60000);
  EXPECT_EQ(sampling.gpu[0].power_limit_max_mw, 70000);
}

TEST_F(NvmlSample, MarksOfNvmlForNotAvailableAreNoReadings) {
  fake->power_limit_max_mw = UINT32_MAX;
  fake->power_limit_mw = 0;
  ASSERT_EQ(sampling_open(&sampling, &error), kOk);
  EXPECT_EQ(sampling.gpu[0].power_limit_mw, -1);
  EXPECT_EQ(sampling.gpu[0].power_limit_max_mw, -1);
  fake->gpu[0].power_mw = fake->gpu[0].clock_mhz = UINT32_MAX;
  fake->gpu[0].energy_mj = UINT64_MAX - 1;  // the fake counts one up
  fake->temperature_c = 256;
  fake->utilization_pct = UINT32_MAX;
  for (Metric metric : {kPowerMw, kEnergyUj, kSmClockMhz, kTemperatureC, kUtilizationPct}) {
    int64_t value = -1;
    EXPECT_EQ(sample(&sampling, &sampling.gpu[0], metric, &value, &error), kNoReading) << metric;
    EXPECT_EQ(value, -1) << metric;
  }
  // What merely looks wrong is kept: judging it is the reader's work.
  fake->gpu[0].power_mw = UINT32_MAX - 1;
  fake->temperature_c = 255;
  EXPECT_EQ(read(0, kPowerMw), int64_t{UINT32_MAX} - 1);
  EXPECT_EQ(read(0, kTemperatureC), 255);
}

TEST_F(NvmlSample, FallsBackToAveragePower) {
  fake->result[kFakePowerField] = 3;  // NOT_SUPPORTED
  ASSERT_EQ(sampling_open(&sampling, &error), kOk);
  EXPECT_FALSE(sampling.gpu[0].power_is_instant);
  EXPECT_EQ(read(0, kPowerMw), 30001) << "GetPowerUsage of the fake gives one more";
}

TEST_F(NvmlSample, LeavesOutGpusItMayNotOpen) {
  fake->gpus = 3;
  fake->result[kFakeByIndex] = 4;
  fake->succeed_first[kFakeByIndex] = 1;
  fake->fail_only[kFakeByIndex] = 1;
  ASSERT_EQ(sampling_open(&sampling, &error), kOk);
  ASSERT_EQ(sampling.gpu_count, 2u);
  EXPECT_EQ(sampling.gpus_refused, 1u);
  EXPECT_EQ(sampling.gpu[1].index, 2u);
}

TEST_F(NvmlSample, NoGpuIsNoError) {
  fake->gpus = 0;
  EXPECT_EQ(sampling_open(&sampling, &error), kOk);
  EXPECT_EQ(sampling.gpu_count, 0u);
}

TEST_F(NvmlSample, ReportsALostGpuAndReadsTheOther) {
  ASSERT_EQ(sampling_open(&sampling, &error), kOk);
  fake->gpu[0].lost = 1;
  for (unsigned m = 0; m < kMetrics; ++m) {
    int64_t value = -1;
    EXPECT_EQ(sample(&sampling, &sampling.gpu[0], static_cast<Metric>(m), &value, &error), 15) << m;
    EXPECT_EQ(value, -1);
  }
  EXPECT_EQ(read(1, kPowerMw), 30001);
}

TEST_F(NvmlSample, ReportsFailuresOfOpening) {
  fake->result[kFakeInit] = 18;
  EXPECT_EQ(sampling_open(&sampling, &error), 18);
  fake->result[kFakeInit] = 0;
  fake->result[kFakeCount] = 999;
  EXPECT_EQ(sampling_open(&sampling, &error), 999);
  int64_t value = 0;
  EXPECT_EQ(sample(&sampling, &sampling.gpu[0], kPowerMw, &value, &error), kBadArgument);
}

}  // namespace
