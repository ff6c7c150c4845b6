// SPDX-License-Identifier: Apache-2.0
// cpufreq in a folder of plain files.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "device/core_clock.h"

using namespace powerccl::device;

namespace {

class CoreClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root = ::testing::TempDir() + "cores-XXXXXX";
    ASSERT_NE(mkdtemp(root.data()), nullptr);
    core(3, "3\n");
  }
  void TearDown() override { std::filesystem::remove_all(root); }

  void core(int cpu, const std::string& affected) {
    folder(cpu);
    set(cpu, "affected_cpus", affected);
    set(cpu, "scaling_max_freq", "2800000\n");
    set(cpu, "cpuinfo_min_freq", "800000\n");
  }
  void folder(int cpu) { std::filesystem::create_directories(path(cpu, "")); }
  void set(int cpu, const std::string& name, const std::string& text) { std::ofstream(path(cpu, name)) << text; }
  std::string path(int cpu, const std::string& name) const {
    return root + "/cpu" + std::to_string(cpu) + "/cpufreq/" + name;
  }
  long highest(int cpu) const {
    long khz = 0;
    std::ifstream(path(cpu, "scaling_max_freq")) >> khz;
    return khz;
  }

  std::string root;
  CoreClock clock;
  Error error;
};

TEST_F(CoreClockTest, GoesDownAndBack) {
  ASSERT_EQ(core_clock_open(&clock, root.c_str(), 3, &error), kOk) << error.text;
  EXPECT_STREQ(clock.name, "cpu3@2800000");
  EXPECT_EQ(highest(3), 2800000) << "opening changes nothing";
  EXPECT_EQ(core_clock_lower(&clock, &error), kOk);
  EXPECT_EQ(highest(3), 800000);
  EXPECT_EQ(core_clock_restore(&clock, &error), kOk);
  EXPECT_EQ(highest(3), 2800000);
}

TEST_F(CoreClockTest, ItsNameIsEnoughToPutItBack) {
  ASSERT_EQ(core_clock_open(&clock, root.c_str(), 3, &error), kOk);
  core_clock_lower(&clock, &error);
  const std::string name = clock.name;
  EXPECT_EQ(core_clock_restore_named(root.c_str(), name.c_str(), &error), kOk);
  EXPECT_EQ(highest(3), 2800000);
}

TEST_F(CoreClockTest, AClockThatOtherCoresShareIsLeftAlone) {
  core(4, "4 5\n");
  EXPECT_EQ(core_clock_open(&clock, root.c_str(), 4, &error), kBadArgument);
  EXPECT_NE(std::string(error.text).find("shares"), std::string::npos);
  core(5, "4 5\n");
  EXPECT_EQ(core_clock_open(&clock, root.c_str(), 5, &error), kBadArgument);
}

TEST_F(CoreClockTest, ACoreThatWasLeftAtItsLowestCanBePutBack) {
  set(3, "scaling_max_freq", "800000\n");
  ASSERT_EQ(core_clock_open(&clock, root.c_str(), 3, &error), kOk) << error.text;
  EXPECT_EQ(clock.usual_khz, clock.lowest_khz);
}

TEST_F(CoreClockTest, WhetherACoreHasAClockOfItsOwnIsFoundWithoutRights) {
  std::filesystem::remove(path(3, "scaling_max_freq"));
  EXPECT_EQ(core_clock_find(&clock, root.c_str(), 3, &error), kOk) << error.text;
  EXPECT_EQ(clock.lowest_khz, 800000u);
  EXPECT_EQ(core_clock_open(&clock, root.c_str(), 3, &error), kSystem);
  core(4, "4 5\n");
  EXPECT_EQ(core_clock_find(&clock, root.c_str(), 4, &error), kBadArgument);
  EXPECT_EQ(core_clock_find(&clock, root.c_str(), 7, &error), kSystem);
}

TEST_F(CoreClockTest, WithoutCpufreqItSaysSo) {
  EXPECT_EQ(core_clock_open(&clock, root.c_str(), 7, &error), kSystem);
  EXPECT_NE(std::string(error.text).find("cpu7"), std::string::npos);
  set(3, "cpuinfo_min_freq", "");
  EXPECT_EQ(core_clock_open(&clock, root.c_str(), 3, &error), kSystem);
}

TEST_F(CoreClockTest, OnlyNamesOfCoresAreCores) {
  for (const char* name : {"cpu0@1", "cpu127@3500000"}) EXPECT_TRUE(is_core_clock(name)) << name;
  for (const char* name : {"", "cpu", "cpu3", "cpu3@", "cpu@5", "cpu3@0", "cpu3@5x", "cpu-3@5", "GPU-cpu3@5"}) {
    EXPECT_FALSE(is_core_clock(name)) << name;
    EXPECT_EQ(core_clock_restore_named(root.c_str(), name, &error), kBadArgument);
  }
}

}  // namespace
