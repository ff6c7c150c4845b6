// SPDX-License-Identifier: Apache-2.0
// The clock of a waiting thread's core: by the thread itself or by a daemon, on a cpufreq made of plain files.
#include "adapters/mpi/core_clocks.h"

#include <sys/wait.h>

#include <memory>

#include "../clock/lease_fixture.h"

namespace powerccl::mpi {
namespace {

using test::Manners;

constexpr uint32_t kLowestMhz = 800;

class ThreadCoreTest : public test::LeaseTest {
 protected:
  void SetUp() override {
    LeaseTest::SetUp();
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_ = sched_getcpu();
    cpufreq_ = folder / ("devices/system/cpu/cpu" + std::to_string(cpu_) + "/cpufreq");
    std::filesystem::create_directories(cpufreq_);
    write("scaling_max_freq", 2800000);
    write("cpuinfo_min_freq", 1000 * kLowestMhz);
    write("affected_cpus", cpu_);
    copy_text(clocks_.sysfs_cores, sizeof(clocks_.sysfs_cores), (folder / "devices/system/cpu").c_str());
    copy_text(environment_.lease_socket, sizeof(environment_.lease_socket), (folder / "socket").c_str());
    copy_text(environment_.run_folder, sizeof(environment_.run_folder), "/runs/run-7");
    clocks_.environment = &environment_;
    clocks_.trace = &trace_;
    clocks_.by_lease = true;
    powerccl_trace_header header = {};
    ASSERT_EQ(trace_.open((folder / "mpi-0.trace").c_str(), header, 16u << 20), 0);
    ASSERT_EQ(device::journal_open(&clocks_.journal, folder.path().c_str(), nullptr), device::kOk);
  }
  void TearDown() override {
    core_->leave();
    sched_setaffinity(0, sizeof(before_), &before_);
    device::journal_close(&clocks_.journal);
    LeaseTest::TearDown();
  }
  void write(const char* name, int value) { std::ofstream(cpufreq_ / name) << value << "\n"; }
  int highest_khz() const {
    int khz = 0;
    std::ifstream(cpufreq_ / "scaling_max_freq") >> khz;
    return khz;
  }
  // The daemon's thread, started before, stays where it likes.
  void bind() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu_, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  void lower() { core_->lower(&clocks_); }
  bool reaches(uint32_t mhz) {
    return eventually([&] { return daemon.now_mhz == mhz; });
  }

  int cpu_ = 0;
  std::filesystem::path cpufreq_;
  Environment environment_;
  TraceWriter trace_;
  CoreClocks clocks_;
  std::unique_ptr<ThreadCore> core_ = std::make_unique<ThreadCore>();

 private:
  cpu_set_t before_;
};

TEST_F(ThreadCoreTest, IsLoweredByTheDaemonAndPutBack) {
  daemon.start();
  bind();
  for (int wait = 0; wait < 2; ++wait) {
    lower();
    ASSERT_TRUE(reaches(kLowestMhz));
    core_->restore();
    ASSERT_TRUE(reaches(0));
  }
  EXPECT_EQ(daemon.device, "cpu" + std::to_string(cpu_));
  EXPECT_EQ(daemon.thread, static_cast<uint32_t>(syscall(SYS_gettid)));
  EXPECT_EQ(daemon.run, "run-7");
  EXPECT_EQ(daemon.hellos, 1) << "the lease is kept between waits";
  EXPECT_EQ(highest_khz(), 2800000) << "the file is the daemon's to write";
  core_->leave();
  EXPECT_TRUE(eventually([&] { return daemon.releases == 1; }));
  trace_.flush();
  EXPECT_EQ(test::read_trace(folder / "mpi-0.trace").of(POWERCCL_REC_CLOCK).size(), 4u);
  EXPECT_EQ(said(), "");
}

TEST_F(ThreadCoreTest, LeavesACoreAloneThatSomebodyElseLowered) {
  clocks_.by_lease = false;
  write("scaling_max_freq", 1000 * kLowestMhz);
  daemon.start();
  bind();
  lower();
  write("scaling_max_freq", 2800000);  // by the other one, which knows what is usual
  core_->restore();
  EXPECT_EQ(highest_khz(), 2800000);
  EXPECT_EQ(daemon.hellos, 0);
}

TEST_F(ThreadCoreTest, IsLoweredBesideAnotherThatSharesTheCore) {
  write("scaling_max_freq", 1000 * kLowestMhz);  // by the other one
  daemon.start();
  bind();
  lower();
  EXPECT_TRUE(reaches(kLowestMhz));
}

TEST_F(ThreadCoreTest, NobodyIsAskedWhereThereIsNothingToLower) {
  daemon.start();
  write("affected_cpus", cpu_ + 1);
  bind();
  lower();
  core_->leave();
  std::filesystem::remove_all(cpufreq_);
  lower();
  core_->leave();
  usleep(20000);
  EXPECT_EQ(daemon.hellos, 0);
  EXPECT_EQ(said(), "");
}

TEST_F(ThreadCoreTest, NobodyIsAskedForAThreadThatIsNotBound) {
  cpu_set_t cores;
  sched_getaffinity(0, sizeof(cores), &cores);
  if (CPU_COUNT(&cores) == 1) GTEST_SKIP() << "there is one core";
  daemon.start();
  lower();
  core_->restore();
  usleep(20000);
  EXPECT_EQ(daemon.hellos, 0);
}

TEST_F(ThreadCoreTest, NoWaitWaitsForTheDaemon) {
  for (const Manners manners : {Manners::kSilent, Manners::kDeaf, Manners::kTalkative}) {
    for (std::atomic<Manners>* which : {&daemon.manners, &daemon.lease_manners}) {
      daemon.manners = daemon.lease_manners = Manners::kGood;
      *which = manners;
      daemon.start();
      bind();
      const uint64_t begin = monotonic_ns();
      for (int wait = 0; wait < 100; ++wait) {
        lower();
        core_->restore();
      }
      EXPECT_LT(monotonic_ns() - begin, test::kSecond / 4);
      lower();
      usleep(20000);
      const uint64_t end = monotonic_ns();
      core_->restore();
      EXPECT_LT(monotonic_ns() - end, test::kSecond / 20);
      daemon.stop();
      core_->leave();
      core_ = std::make_unique<ThreadCore>();
    }
  }
}

TEST_F(ThreadCoreTest, ADaemonThatComesLaterIsFound) {
  bind();
  lower();
  EXPECT_TRUE(eventually([&] { return said().find("cannot set the clock of") != std::string::npos; }));
  daemon.start();
  EXPECT_TRUE(reaches(kLowestMhz));
}

TEST_F(ThreadCoreTest, TheNextThreadHasThePlace) {
  daemon.start();
  bind();
  for (int threads = 1; threads <= 2; ++threads) {
    lower();
    ASSERT_TRUE(reaches(kLowestMhz));
    core_->leave();
    ASSERT_TRUE(reaches(0));
    EXPECT_TRUE(eventually([&] { return daemon.releases == threads; }));
  }
  std::vector<uint32_t> sets = daemon.sets();  // usual is asked for twice: by the thread, and by its clock thread
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  EXPECT_EQ(sets, (std::vector<uint32_t>{kLowestMhz, 0, kLowestMhz, 0}));
}

TEST_F(ThreadCoreTest, AForkedChildLeavesTheCoreToItsParent) {
  daemon.start();
  bind();
  lower();
  ASSERT_TRUE(reaches(kLowestMhz));
  const pid_t child = fork();
  if (child == 0) {
    core_->forget();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  usleep(20000);
  EXPECT_EQ(daemon.now_mhz, kLowestMhz);
  EXPECT_EQ(daemon.ends, 0);
  core_->restore();
  EXPECT_TRUE(reaches(0));
}

}  // namespace
}  // namespace powerccl::mpi
