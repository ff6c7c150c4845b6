// SPDX-License-Identifier: Apache-2.0
// Tuned collectives in the engine, in model time: methods, noise, hangs, and ranks that decide differently.
#include <gtest/gtest.h>

#include "collective_model.h"

namespace powerccl::physics::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr Time kMs = 1'000'000;
constexpr Time kLong = 10'000 * kMs;
constexpr uint32_t kRanks = 4;

Platform tunable_platform() {
  Platform platform = flat_platform(kRanks);
  platform.nccl_channels = 4;
  platform.comm_w = {{1, 20}};
  platform.tune.channel_half = {{1, 1}};
  platform.tune.channel_power = 0.5;
  return platform;
}

class TunedModel : public ::testing::Test {
 protected:
  explicit TunedModel(const Platform& platform = tunable_platform()) : model(platform) { model.run_for(kMs); }

  static CollectiveTask all_reduce(uint64_t bytes, uint8_t method = 0, uint8_t channels = 0) {
    CollectiveTask task = Model::task(TaskKind::kAllReduce, bytes, DataType::kInt8);
    task.method = method;
    task.channels = channels;
    return task;
  }
  uint64_t communicator(uint8_t key, const NcclSettings& settings) {
    uint64_t last = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Join join = model.join_of(rank, kRanks, key, false);
      join.settings = settings;
      last = model.request(Model::client_of(rank), CollectiveMessage::kJoin, join);
    }
    return model.replies.at(last).as<Joined>().comm;
  }
  Time duration(uint64_t comm, const CollectiveTask& task) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) model.submit(comm, rank, {task});
    model.run_for(kLong);
    EXPECT_TRUE(model.ended(0));
    return model.ended_at(0) - model.started_at(0);
  }
  static NcclSettings tuned(uint64_t seed = 0) {
    NcclSettings settings{};
    settings.flags = NcclSettings::kTuned;
    settings.seed = seed;
    return settings;
  }
  Model model;
};

TEST_F(TunedModel, AMethodChangesTimeAndPowerAndTheDefaultNothing) {
  const uint64_t comm = communicator(1, {});
  const Time usual = duration(comm, all_reduce(64 * kMiB));
  EXPECT_EQ(duration(comm, all_reduce(64 * kMiB)), usual);
  EXPECT_EQ(duration(comm, all_reduce(64 * kMiB, method_byte(kRing, kSimple), 4)), usual);
  EXPECT_GT(duration(comm, all_reduce(64 * kMiB, method_byte(kRing, kLl), 4)), 3 * usual / 2);
  EXPECT_NEAR(static_cast<double>(duration(comm, all_reduce(64 * kMiB, method_byte(kRing, kSimple), 1))) /
                  static_cast<double>(usual),
              1.6, 0.01);  // 4 / 5 of the most against 1 / 2

  const auto watts = [&](uint8_t channels) {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      model.submit(comm, rank, {all_reduce(64 * kMiB, method_byte(kRing, kSimple), channels)});
    model.run_for(kMs);
    const double busy = model.engine.gpu(0).watts();
    model.run_for(kLong);
    return busy;
  };
  EXPECT_NEAR(watts(4) - watts(2), 20 * 0.5 * 0.5, 1e-6);
  EXPECT_NEAR(watts(8) - watts(4), 20 * 0.5, 1e-6);
}

TEST_F(TunedModel, NoiseComesWithTuningOnlyAndIsAFewPercent) {
  const uint64_t plain = communicator(1, {});
  const Time usual = duration(plain, all_reduce(64 * kMiB));
  EXPECT_EQ(duration(plain, all_reduce(64 * kMiB)), usual);
  double least = 10, most = 0;
  for (uint8_t key = 2; key < 22; ++key) {
    const uint64_t comm = communicator(key, tuned());
    const double first = static_cast<double>(duration(comm, all_reduce(64 * kMiB))) / static_cast<double>(usual);
    const double second = static_cast<double>(duration(comm, all_reduce(64 * kMiB))) / static_cast<double>(usual);
    EXPECT_NE(first, second);
    EXPECT_NEAR(first, second, 0.06);  // one communicator is steadier than communicators are alike
    least = std::min(least, first);
    most = std::max(most, first);
  }
  EXPECT_GT(most - least, 0.03);
  EXPECT_GT(least, 0.85);
  EXPECT_LT(most, 1.15);
}

TEST_F(TunedModel, ASeedMakesNoiseRepeatable) {
  const auto sequence = [](uint64_t seed) {
    Model fresh(tunable_platform());
    fresh.run_for(kMs);
    std::vector<Time> times;
    for (uint8_t key = 1; key < 4; ++key) {
      uint64_t last = 0;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        Join join = fresh.join_of(rank, kRanks, static_cast<uint8_t>(key + 16 * seed), false);
        join.settings = tuned(seed);
        last = fresh.request(Model::client_of(rank), CollectiveMessage::kJoin, join);
      }
      const uint64_t comm = fresh.replies.at(last).as<Joined>().comm;
      for (uint32_t rank = 0; rank < kRanks; ++rank) fresh.submit(comm, rank, {all_reduce(64 * kMiB)});
      fresh.run_for(kLong);
      times.push_back(fresh.ended_at(0) - fresh.started_at(0));
    }
    return times;
  };
  const std::vector<Time> first = sequence(7);
  EXPECT_EQ(first, sequence(7));
  EXPECT_NE(first, sequence(8));
  EXPECT_NE(first[0], first[1]);
}

TEST(TunedModelAlways, NoiseMayBeAskedFor) {
  Platform noisy = tunable_platform();
  noisy.tune.noise_always = true;
  Model model(noisy);
  model.run_for(kMs);
  const uint64_t comm = model.communicator(kRanks);
  std::set<Time> times;
  for (int i = 0; i < 3; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      model.submit(comm, rank, {Model::task(TaskKind::kAllReduce, 16 * kMiB)});
    model.run_for(kLong);
    times.insert(model.ended_at(0) - model.started_at(0));
  }
  EXPECT_EQ(times.size(), 3u);
}

TEST_F(TunedModel, RanksThatDecideDifferentlyHangAndTheLogSaysSo) {
  const CollectiveTask usual = all_reduce(64 * kMiB, method_byte(kRing, kSimple), 4);
  const std::pair<CollectiveTask, const char*> others[] = {
      {all_reduce(64 * kMiB, method_byte(kTree, kSimple), 4), "TREE/SIMPLE on 4 channels"},
      {all_reduce(64 * kMiB, method_byte(kRing, kLl128), 4), "RING/LL128 on 4 channels"},
      {all_reduce(64 * kMiB, method_byte(kRing, kSimple), 2), "RING/SIMPLE on 2 channels"}};
  uint8_t key = 1;
  for (const auto& [other, name] : others) {
    const uint64_t comm = communicator(++key, {});
    ::testing::internal::CaptureStderr();
    for (uint32_t rank = 0; rank < kRanks; ++rank) model.submit(comm, rank, {rank == 2 ? other : usual});
    model.run_for(kLong);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("ranks disagree: operation 0"), std::string::npos) << log;
    EXPECT_NE(log.find("rank 0 runs RING/SIMPLE on 4 channels, rank 2 " + std::string(name)), std::string::npos) << log;
    for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_FALSE(model.ended(rank));
    for (uint32_t rank = 0; rank < kRanks; ++rank)  // whoever is tired of waiting gets out
      model.request(Model::client_of(rank), CollectiveMessage::kAbort, Member{comm, rank, 0});
    model.run_for(kMs);
    for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(model.ended(rank));
  }
}

TEST_F(TunedModel, SplitCommunicatorsKeepTheSettings) {
  NcclSettings settings = tuned();
  settings.flags |= NcclSettings::kHangs;
  const uint64_t comm = communicator(1, settings);
  uint64_t last = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    last = model.request(Model::client_of(rank), CollectiveMessage::kSplit, Split{comm, rank, 0, 0, 0});
  const uint64_t child = model.replies.at(last).as<Joined>().comm;
  ASSERT_NE(child, 0u);
  for (uint32_t rank = 0; rank < kRanks; ++rank) model.submit(child, rank, {all_reduce(kMiB)});
  model.run_for(kLong);
  EXPECT_FALSE(model.ended(0));
}

}  // namespace
}  // namespace powerccl::physics::test
