// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <cstring>

#include "device/nvml_clock.h"
#include "device/process.h"
#include "support.h"

using namespace powerccl::device;

namespace {

class NvmlClock : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.clear();
    setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
    ASSERT_EQ(clock_open(&gpu, fake_uuid(1).c_str(), &error), kOk) << error.text;
  }
  void TearDown() override { clock_close(&gpu); }

  FakeNvml& fake = FakeNvml::instance();
  ClockDevice gpu;
  Error error;
};

TEST_F(NvmlClock, OpensByUuidAndSaysWhatItFound) {
  EXPECT_EQ(gpu.index, 1u);
  EXPECT_EQ(gpu.uuid, fake_uuid(1));
  EXPECT_STREQ(gpu.pci, "00000001:01:00.0");
  EXPECT_STREQ(gpu.name, "Fake \"T4\"");
  EXPECT_FALSE(clock_emulated(&gpu));
}

TEST_F(NvmlClock, OpensByPciBusId) {
  ClockDevice other;
  ASSERT_EQ(clock_open(&other, "00000000:01:00.0", &error), kOk) << error.text;
  EXPECT_EQ(other.uuid, fake_uuid(0));
  clock_close(&other);
}

TEST_F(NvmlClock, LocksReadsBackAndResets) {
  ASSERT_EQ(clock_lock(&gpu, 480, 600, &error), kOk);
  uint32_t mhz = 0;
  ASSERT_EQ(clock_read_sm_mhz(&gpu, &mhz, &error), kOk);
  EXPECT_EQ(mhz, 600u);
  ASSERT_EQ(clock_reset(&gpu, &error), kOk);
  ASSERT_EQ(clock_read_sm_mhz(&gpu, &mhz, &error), kOk);
  EXPECT_EQ(mhz, 1590u);
  EXPECT_EQ(fake->gpu[1].locks, 1u);
  EXPECT_EQ(fake->gpu[1].resets, 1u);
  EXPECT_EQ(fake->gpu[0].locks + fake->gpu[0].resets, 0u);
  ASSERT_EQ(clock_max_sm_mhz(&gpu, &mhz, &error), kOk);
  EXPECT_EQ(mhz, 1590u);
  uint64_t reasons = 0;
  ASSERT_EQ(clock_throttle_reasons(&gpu, &reasons, &error), kOk);
  EXPECT_EQ(reasons, 0x20u);
}

TEST_F(NvmlClock, RefusesWhatCannotBeAsked) {
  EXPECT_EQ(clock_lock(&gpu, 600, 480, &error), kBadArgument);
  EXPECT_EQ(clock_lock(&gpu, 0, 480, &error), kBadArgument);
  EXPECT_EQ(fake->gpu[1].locks, 0u);
  ClockDevice other;
  EXPECT_EQ(clock_open(&other, "MIG-1234", &error), kBadArgument);
  EXPECT_EQ(clock_open(&other, "", &error), kBadArgument);
  EXPECT_EQ(clock_open(&other, "GPU-of-somebody-else", &error), 6) << "NVML_ERROR_NOT_FOUND";
  EXPECT_EQ(clock_lock(&other, 480, 480, &error), kBadArgument) << "a failed open leaves nothing open";
}

TEST_F(NvmlClock, ReportsAnNvmlThatFailsMidway) {
  for (int code : {4, 15, 999}) {  // NO_PERMISSION, GPU_IS_LOST, UNKNOWN
    fake->result[kFakeLock] = code;
    fake->succeed_first[kFakeLock] = fake->calls[kFakeLock] + 1;
    EXPECT_EQ(clock_lock(&gpu, 480, 480, &error), kOk);
    EXPECT_EQ(clock_lock(&gpu, 480, 480, &error), code);
    EXPECT_EQ(error.code, code);
    EXPECT_NE(std::strstr(error.text, std::to_string(code).c_str()), nullptr) << error.text;
  }
  EXPECT_STRNE(hint(4), "");
  EXPECT_STRNE(hint(15), "");
  fake->gpu[1].lost = 1;
  uint32_t mhz = 0;
  uint64_t reasons = 0;
  EXPECT_EQ(clock_reset(&gpu, &error), 15);
  EXPECT_EQ(clock_read_sm_mhz(&gpu, &mhz, &error), 15);
  EXPECT_EQ(clock_throttle_reasons(&gpu, &reasons, &error), 15);
  EXPECT_EQ(clock_reset(&gpu, nullptr), 15) << "an error may be unwanted";
}

TEST_F(NvmlClock, TellsARefusalFromAFailure) {
  for (int code : {2, 3, 4, static_cast<int>(kSymbolMissing), static_cast<int>(kBadArgument)})
    EXPECT_TRUE(clock_refused(code)) << code;
  for (int code : {0, 10, 15, 999}) EXPECT_FALSE(clock_refused(code)) << code;
}

TEST_F(NvmlClock, ReportsAnNvmlThatDoesNotInitialise) {
  fake->result[kFakeInit] = 9;  // DRIVER_NOT_LOADED
  ClockDevice other;
  EXPECT_EQ(clock_open(&other, fake_uuid(0).c_str(), &error), 9);
  EXPECT_EQ(clock_open(&other, fake_uuid(0).c_str(), nullptr), kLibraryMissing);
  EXPECT_STRNE(hint(9), "");
}

// In a child, because privileges do not come back.
TEST_F(NvmlClock, KnowsThatLockingTakesPrivilege) {
  pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(3);
    Error refusal;
    bool may = clock_may_lock(&gpu, &refusal);
    _exit(!may && refusal.code == 4 && !process_has_sys_admin() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(clock_may_lock(&gpu, &error), process_has_sys_admin());
}

TEST_F(NvmlClock, KnowsThatPascalHasNoLockedClocks) {
  fake->architecture = 4;
  EXPECT_FALSE(clock_may_lock(&gpu, &error));
  EXPECT_EQ(error.code, 3);
}

}  // namespace
