// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_time.h"
#include "fake_powercap.h"
#include "support.h"

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
