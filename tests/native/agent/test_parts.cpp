// SPDX-License-Identifier: Apache-2.0
// The agent's pieces that need no process, and its one-shot modes.
#include "abi/host_clock.h"
#include "agent/cadence.h"
#include "agent/options.h"
#include "agent/ticker.h"
#include "agent_fixture.h"

using namespace powerccl::agent;
using powerccl::device::kEnergyUj;
using powerccl::device::kPowerMw;

namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Cadence, CheapMetricsAreReadAtEveryTick) {
  EXPECT_EQ(read_period_ns(kEnergyUj, {1000, 1000}, 4, 20 * kMs), 20 * kMs);
}

TEST(Cadence, PowerIsReadAtEveryTickWhateverItCosts) {
  EXPECT_EQ(read_period_ns(kPowerMw, {3 * kMs, 3 * kMs}, 8, 20 * kMs), 20 * kMs);
}

TEST(Cadence, DearMetricsStayUnderTheirShareOfACore) {
  for (unsigned gpus : {1u, 4u, 8u}) {
    int64_t period = read_period_ns(kEnergyUj, {3 * kMs, 3 * kMs}, gpus, 20 * kMs);
    EXPECT_EQ(period % (20 * kMs), 0);
    EXPECT_LE(3.0 * kMs * gpus / static_cast<double>(period), 0.002);
    EXPECT_GE(3.0 * kMs * gpus / static_cast<double>(period), 0.0019);
  }
}

TEST(Cadence, NothingDearIsReadMoreOftenThanItsCounterCounts) {
  EXPECT_EQ(read_period_ns(kEnergyUj, {100'000, 100'000}, 1, 20 * kMs), 100 * kMs);
  EXPECT_EQ(read_period_ns(kEnergyUj, {100'000, 100'000}, 1, 300 * kMs), 300 * kMs);
}

TEST(Cadence, WhatCanBeAffordedAtEveryTickIsReadAtEveryTick) {  // a T4's counter moves every 20 ms
  EXPECT_EQ(read_period_ns(kEnergyUj, {2'000, 2'000}, 8, 10 * kMs), 10 * kMs);
}

TEST(Cadence, WaitingCountsLessThanWorking) {
  EXPECT_EQ(read_period_ns(kEnergyUj, {0, 3 * kMs}, 1, 20 * kMs), 100 * kMs);
  EXPECT_EQ(read_period_ns(kEnergyUj, {0, 3 * kMs}, 8, 20 * kMs), 240 * kMs);
}

TEST(Ticks, ALateThreadIsFollowedByNoBurst) {
  StopEvent stop;
  ASSERT_EQ(stop.open(), 0);
  std::vector<int64_t> deadlines;
  std::vector<int64_t> times;
  const int64_t start = powerccl::host_now_ns();
  run_ticks(stop, start, 10 * kMs, 1000, [&](int64_t deadline, bool) {
    deadlines.push_back(deadline);
    times.push_back(powerccl::host_now_ns());
    if (times.size() == 2) usleep(255'000);  // held back for 25 intervals
    return times.size() < 6;
  });
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ((deadlines[i] - start) % (10 * kMs), 0) << "on the same grid as before";
    if (i > 0) {
      EXPECT_GT(deadlines[i], deadlines[i - 1]);
    }
    EXPECT_LE(deadlines[i], times[i]);
  }
  EXPECT_GE(deadlines[2] - deadlines[1], 250 * kMs) << "what was missed is skipped";
}

TEST(Ticks, DueMomentsThatHavePassedAreSkippedAtOnce) {
  EXPECT_EQ(next_due_ns(100, 10, 99), 100);
  EXPECT_EQ(next_due_ns(100, 10, 100), 110);
  EXPECT_EQ(next_due_ns(100, 10, 125), 130);
  EXPECT_EQ(next_due_ns(0, 20 * kMs, int64_t{1} << 62) % (20 * kMs), 0);
}

TEST(Ticks, TheEndDoesNotWaitForATickThatHangs) {
  auto hangs = std::make_shared<std::atomic<bool>>(true);
  auto begun = std::make_shared<std::atomic<bool>>(false);
  Ticker ticker;
  ASSERT_EQ(ticker.start(powerccl::host_now_ns(), kMs, 1000,
                         [=](int64_t, bool) {
                           *begun = true;
                           while (*hangs) usleep(1000);
                           return true;
                         }),
            0);
  ASSERT_TRUE(eventually([&] { return begun->load(); }));
  EXPECT_FALSE(ticker.stop(30 * kMs));
  *hangs = false;
  EXPECT_TRUE(ticker.stop(5'000 * kMs));
}

std::optional<int> parse(std::vector<const char*> words, Options* options) {
  words.insert(words.begin(), "powerccl-agent");
  return parse_options(static_cast<int>(words.size()), words.data(), options);
}

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("POWERCCL_RUN_FOLDER"); }
  Options options;
};

TEST_F(OptionsTest, ReadsBothSpellings) {
  ASSERT_EQ(parse({"--run-folder", "a", "--interval-ms=7", "--no-sample"}, &options), std::nullopt);
  EXPECT_EQ(options.run_folder, "a");
  EXPECT_EQ(options.interval_ns, 7 * kMs);
  EXPECT_FALSE(options.sample);
}

TEST_F(OptionsTest, TakesTheJobsEnvironmentAsItIs) {
  ASSERT_EQ(parse({"--run-folder", "a", "--job-environment", R"({"CUDA_VISIBLE_DEVICES": "2,3"})"}, &options),
            std::nullopt);
  EXPECT_EQ(options.job_environment, R"({"CUDA_VISIBLE_DEVICES": "2,3"})");
}

TEST_F(OptionsTest, TheFolderMayComeFromTheEnvironment) {
  setenv("POWERCCL_RUN_FOLDER", "from-environment", 1);
  ASSERT_EQ(parse({}, &options), std::nullopt);
  EXPECT_EQ(options.run_folder, "from-environment");
}

TEST_F(OptionsTest, MistakesAreRefused) {
  for (const auto& words : std::vector<std::vector<const char*>>{{},
                                                                 {"--run-folder"},
                                                                 {"--run-folder", "a", "--interval-ms", "0"},
                                                                 {"--run-folder", "a", "--interval-ms", "20s"},
                                                                 {"--run-folder", "a", "--clocks", "dry"}}) {
    Options fresh;
    EXPECT_EQ(parse(words, &fresh), 2);
  }
}

TEST_F(AgentTest, WrongUsageHasItsOwnExitCode) {
  int code = -1;
  std::string errors;
  EXPECT_EQ(run_agent({"--nonsense"}, &code, &errors), "");
  EXPECT_EQ(code, 2);
  EXPECT_NE(run_agent({"--help"}, &code).find("--run-folder"), std::string::npos);
  EXPECT_EQ(code, 0);
}

}  // namespace
