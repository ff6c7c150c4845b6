// SPDX-License-Identifier: Apache-2.0
// An NVML that lacks functions (FAKE_NVML_OLD), and files that are no NVML at all. NVML is loaded once a process: hence
// a program of its own, whose first test is the one that fails to load.
#include <sys/wait.h>

#include "device/nvml_clock.h"
#include "device/nvml_sample.h"
#include "support.h"

using namespace powerccl::device;

namespace {

// In a child, so that the order of tests does not matter.
int open_code_with(const char* library) {
  pid_t child = fork();
  if (child == 0) {
    setenv("POWERCCL_NVML_LIBRARY", library, 1);
    Sampling sampling;
    Error error;
    int code = sampling_open(&sampling, &error);
    _exit(code == kLibraryMissing && error.text[0] ? 17 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OldNvml, MissingLibraryIsReported) {
  EXPECT_EQ(open_code_with("/nowhere/libnvidia-ml.so.1"), 17);
  EXPECT_STRNE(hint(kLibraryMissing), "");
}

TEST(OldNvml, LibraryThatIsNoNvmlIsReported) {
  EXPECT_EQ(open_code_with("libc.so.6"), 17);
  EXPECT_EQ(open_code_with("/proc/self/status"), 17);
}

TEST(OldNvml, MissingFunctionsAreToleratedAndReported) {
  FakeNvml::instance().clear();
  setenv("POWERCCL_NVML_LIBRARY", FAKE_NVML_PATH, 1);
  Error error;
  Sampling sampling;
  ASSERT_EQ(sampling_open(&sampling, &error), kOk) << error.text;
  int64_t value = -1;
  EXPECT_EQ(sample(&sampling, &sampling.gpu[0], kPowerMw, &value, &error), kOk);
  EXPECT_EQ(value, 30001);
  EXPECT_EQ(sample(&sampling, &sampling.gpu[0], kEnergyUj, &value, &error), kSymbolMissing);
  EXPECT_EQ(sample(&sampling, &sampling.gpu[0], kThrottleReasons, &value, &error), kOk);
  EXPECT_EQ(value, 4) << "by its older name";

  ClockDevice gpu;
  ASSERT_EQ(clock_open(&gpu, fake_uuid(0).c_str(), &error), kOk);
  EXPECT_EQ(clock_lock(&gpu, 480, 480, &error), kSymbolMissing);
  EXPECT_EQ(clock_reset(&gpu, &error), kSymbolMissing);
  EXPECT_FALSE(clock_may_lock(&gpu, &error));
  EXPECT_EQ(error.code, kSymbolMissing);
  clock_close(&gpu);
  sampling_close(&sampling);
}

}  // namespace
