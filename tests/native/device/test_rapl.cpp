// SPDX-License-Identifier: Apache-2.0
// RAPL in folders of plain files, and through a perf PMU that every kernel has.
#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "device/cpu_time.h"
#include "device/process.h"
#include "device/rapl.h"
#include "support.h"

using namespace powerccl::device;

namespace {

class RaplTest : public ::testing::Test {
 protected:
  void TearDown() override { rapl_close(&rapl); }
  void open_all() { rapl_open(&rapl, sysfs().c_str()); }
  const std::string& sysfs() const { return folder.path(); }
  std::string pmu(const std::string& name) const { return sysfs() + "/bus/event_source/devices/power/" + name; }
  void make_pmu() {
    write_file(pmu("type"), std::to_string(PERF_TYPE_SOFTWARE) + "\n");
    write_file(pmu("cpumask"), "0\n");
    write_file(pmu("events/energy-pkg"), "event=0x00\n");  // PERF_COUNT_SW_CPU_CLOCK: nanoseconds
    write_file(pmu("events/energy-pkg.scale"), "1.0e-9\n");
    write_file(sysfs() + "/devices/system/cpu/cpu0/topology/physical_package_id", "3\n");
  }
  bool says(const char* words) const { return std::string(rapl.reason).find(words) != std::string::npos; }

  ScratchFolder folder;
  Rapl rapl;
};

TEST_F(RaplTest, ReadsPackagesAndTheirParts) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1000);
  make_zone(sysfs(), "intel-rapl:0:0", "core", 400);
  make_zone(sysfs(), "intel-rapl:0:1", "dram", 50);
  make_zone(sysfs(), "intel-rapl:2", "package-1", 262143328849);
  make_zone(sysfs(), "intel-rapl-mmio:0", "package-0", 1000);  // the same package once more
  open_all();
  EXPECT_STREQ(rapl.source, "powercap");
  EXPECT_STREQ(rapl.reason, "");
  ASSERT_EQ(rapl.domains, 4);
  EXPECT_STREQ(rapl.domain[0].name, "package-0");
  EXPECT_STREQ(rapl.domain[1].name, "package-0/core");
  EXPECT_STREQ(rapl.domain[2].name, "package-0/dram");
  EXPECT_STREQ(rapl.domain[3].name, "package-1");
  EXPECT_EQ(rapl.domain[3].range_uj, 262143328850);
  EXPECT_EQ(rapl_read_uj(&rapl.domain[2]), 50);
  write_file(zone_path(sysfs(), "intel-rapl:2") + "/energy_uj", "7\n");
  EXPECT_EQ(rapl_read_uj(&rapl.domain[3]), 7) << "read anew each time; a wrap is the reader's to see";
}

TEST_F(RaplTest, TwoZonesOfOneNameAreTwoDomains) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1);
  make_zone(sysfs(), "intel-rapl:1", "package-0", 2);
  open_all();
  ASSERT_EQ(rapl.domains, 2);
  EXPECT_STRNE(rapl.domain[0].name, rapl.domain[1].name);
  EXPECT_EQ(std::string(rapl.domain[1].name).find_first_of(", :"), std::string::npos) << "a field of a CSV file";
}

TEST_F(RaplTest, ARangeThatNobodyTellsIsZero) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1);
  std::filesystem::remove(zone_path(sysfs(), "intel-rapl:0") + "/max_energy_range_uj");
  open_all();
  ASSERT_EQ(rapl.domains, 1);
  EXPECT_EQ(rapl.domain[0].range_uj, 0);
}

TEST_F(RaplTest, WhatDoesNotReadIsLeftOut) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1);
  make_zone(sysfs(), "intel-rapl:1", "package-1", 1);
  write_file(zone_path(sysfs(), "intel-rapl:1") + "/energy_uj", "none\n");
  make_zone(sysfs(), "intel-rapl:2", "package-2", 1);
  std::filesystem::remove(zone_path(sysfs(), "intel-rapl:2") + "/energy_uj");
  open_all();
  EXPECT_EQ(rapl.domains, 1);
}

TEST_F(RaplTest, CountersForRootOnlySayWhatToAskFor) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1);
  std::filesystem::permissions(zone_path(sysfs(), "intel-rapl:0") + "/energy_uj", std::filesystem::perms::none);
  open_all();
  EXPECT_EQ(rapl.domains, 0);
  EXPECT_STREQ(rapl.source, "none");
  EXPECT_TRUE(says("read access") && says("perf_event_paranoid")) << rapl.reason;
}

TEST_F(RaplTest, CountersThatFailSayHow) {
  make_zone(sysfs(), "intel-rapl:0", "package-0", 1);
  std::filesystem::remove(zone_path(sysfs(), "intel-rapl:0") + "/energy_uj");
  std::filesystem::create_directory(zone_path(sysfs(), "intel-rapl:0") + "/energy_uj");
  open_all();
  EXPECT_EQ(rapl.domains, 0);
  EXPECT_TRUE(says("counters: Is a directory")) << rapl.reason;
}

TEST_F(RaplTest, AMachineWithoutAnySaysSo) {
  open_all();
  EXPECT_EQ(rapl.domains, 0);
  EXPECT_TRUE(says("no RAPL") && says("virtual machine")) << rapl.reason;
}

TEST_F(RaplTest, PerfCountsWherePowercapIsNot) {
  make_pmu();
  open_all();
  if (rapl.domains == 0) {
    EXPECT_FALSE(says("no RAPL")) << rapl.reason;
    GTEST_SKIP() << "perf_event_open is not allowed here: " << rapl.reason;
  }
  EXPECT_STREQ(rapl.source, "perf");
  EXPECT_STREQ(rapl.domain[0].name, "package-3");
  EXPECT_EQ(rapl.domain[0].range_uj, 0) << "the kernel extends these to 64 bits";
  int64_t before = rapl_read_uj(&rapl.domain[0]);
  usleep(50'000);
  int64_t rise = rapl_read_uj(&rapl.domain[0]) - before;
  EXPECT_GE(rise, 10'000) << "a microjoule a microsecond by the fake scale";
  EXPECT_LE(rise, 60'000'000);
}

TEST_F(RaplTest, DiesOfOnePackageAreToldApart) {
  make_pmu();
  write_file(pmu("cpumask"), "0-1\n");
  write_file(sysfs() + "/devices/system/cpu/cpu1/topology/physical_package_id", "3\n");
  write_file(sysfs() + "/devices/system/cpu/cpu1/topology/die_id", "1\n");
  open_all();
  if (rapl.domains < 2) GTEST_SKIP() << "perf_event_open is not allowed here, or there is one processor";
  EXPECT_STREQ(rapl.domain[0].name, "package-3");
  EXPECT_STREQ(rapl.domain[1].name, "package-3-die-1");
}

TEST_F(RaplTest, AGarbledPmuIsNone) {
  make_pmu();
  write_file(pmu("cpumask"), "all\n");
  open_all();
  EXPECT_EQ(rapl.domains, 0);
  write_file(pmu("cpumask"), "0\n");
  write_file(pmu("events/energy-pkg.scale"), "much\n");
  open_all();
  EXPECT_EQ(rapl.domains, 0);
}

}  // namespace

using namespace powerccl::device;

namespace {

constexpr int64_t kTickNs = 10'000'000;

TEST(CpuTime, AddsUpWhatIsBusyAndWhatIsIdle) {
  CpuTime time;
  ASSERT_TRUE(parse_cpu_time("cpu  1 2 4 100 50 8 16 32 64 128\ncpu0 9 9 9 9\n", kTickNs, &time));
  EXPECT_EQ(time.busy_ns, 63 * kTickNs) << "guests are in user and nice already";
  EXPECT_EQ(time.idle_ns, 150 * kTickNs);
}

TEST(CpuTime, FourColumnsAreEnough) {
  CpuTime time;
  ASSERT_TRUE(parse_cpu_time("cpu  1 2 4 100\n", kTickNs, &time));
  EXPECT_EQ(time.busy_ns, 7 * kTickNs);
  EXPECT_EQ(time.idle_ns, 100 * kTickNs);
}

TEST(CpuTime, AnythingElseIsRefused) {
  for (const char* text :
       {"", "\n", "cpu", "cpu \n", "cpu  1 2 4\n", "cpu  1 2 4 1x0 5 6 7 8\n", "cpu  1 2 4 -100 0\n",
        "cpu  1 2 4 100 junk\n", "cpu  1 2 4 100 50 8 1", "cpu0 1 2 4 100 5 6 7 8 9\n", "intr 1 2 3 4 5 6 7 8\n"}) {
    CpuTime time;
    EXPECT_FALSE(parse_cpu_time(text, kTickNs, &time)) << text;
    EXPECT_EQ(time.busy_ns, -1);
    EXPECT_EQ(time.idle_ns, -1);
  }
}

TEST(CpuTime, YearsOfManyProcessorsNeverTurnNegative) {
  CpuTime time;
  ASSERT_TRUE(parse_cpu_time("cpu  3200000000000 0 0 18446744073709551615 0\n", kTickNs, &time));
  EXPECT_GE(time.busy_ns, 0);
  EXPECT_GE(time.idle_ns, 0);
}

TEST(CpuTime, IsReadAnewEachTime) {
  ScratchFolder folder;
  const std::string path = folder.path() + "/stat";
  write_file(path, "cpu  1 0 0 1\n");
  const int file = cpu_time_open(path.c_str());
  CpuTime first;
  ASSERT_TRUE(cpu_time_read(file, &first));
  write_file(path, "cpu  3 0 0 1\n");
  CpuTime second;
  ASSERT_TRUE(cpu_time_read(file, &second));
  EXPECT_GT(second.busy_ns, first.busy_ns);
  EXPECT_EQ(second.idle_ns, first.idle_ns);
  close(file);
}

TEST(CpuTime, NoFileIsNoTime) {
  const int file = cpu_time_open("/nowhere/stat");
  CpuTime time;
  EXPECT_EQ(file, -1);
  EXPECT_FALSE(cpu_time_read(file, &time));
}

TEST(CpuTime, ThisHostTells) {
  const int file = cpu_time_open(kProcStat);
  CpuTime time;
  ASSERT_TRUE(cpu_time_read(file, &time));
  EXPECT_GT(time.busy_ns + time.idle_ns, 0);
  close(file);
}

}  // namespace

using namespace powerccl::device;

namespace {

TEST(ProcessStart, SurvivesAwkwardNames) {
  uint64_t before = process_start_ticks(getpid());
  EXPECT_GT(before, 0u);
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  prctl(PR_SET_NAME, ") R 1 (x y");
  EXPECT_EQ(process_start_ticks(getpid()), before);
  prctl(PR_SET_NAME, name);
  EXPECT_EQ(process_start_ticks(0x3fffffff), 0u);
}

}  // namespace
