// SPDX-License-Identifier: Apache-2.0
// What a clock thread decides, with a client whose time stands still unless the test moves it.
#include "clock/clock_follower.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../record/trace_reader.h"
#include "clock/node_memory.h"

namespace powerccl::test {
namespace {

constexpr uint64_t kMs = 1000000u;

struct Client final : ClockClient {
  uint64_t now = 1000 * kMs, takes = 2 * kMs, grants = 1;
  LoweringLimit limit;
  uint64_t interval = 0;
  uint32_t mhz = 0;
  std::vector<uint32_t> sets;

  uint64_t now_ns() const override { return now; }
  int set(uint32_t wanted) override {
    if (grants == 0) return kClockNotNow;
    limit.asked(wanted, now);
    now += takes;
    mhz = wanted;
    sets.push_back(wanted);
    return 0;
  }
  int reset() override { return set(0); }
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* to) override {
    to->mhz = mhz;
    return 0;
  }
  uint64_t grant() const override { return grants; }
  uint64_t delay_ns(uint32_t wanted) const override { return limit.delay_ns(wanted, now, interval); }
};

struct Policy final : ClockPolicy {
  uint32_t mhz = 0;
  uint64_t until = 3000 * kMs;
  int asked = 0, times_withheld = 0;
  Wanted wanted(uint64_t) override {
    ++asked;
    return {mhz, until, 7};
  }
  void withheld() override { ++times_withheld; }
};

struct Records final : Trace {
  std::vector<powerccl_trace_record> all;
  bool append(const powerccl_trace_record& record) override {
    all.push_back(record);
    return true;
  }
};

class Follower : public testing::Test {
 protected:
  void SetUp() override { follower.begin(&client, &policy, &records, false); }

  Client client;
  Policy policy;
  Records records;
  ClockFollower follower;
};

TEST_F(Follower, ASetIsReadBackTenMillisecondsAfterTheCall) {
  policy.mhz = 480;
  EXPECT_EQ(follower.follow(), 10 * kMs);
  EXPECT_TRUE(records.all.empty());
  client.now += 10 * kMs;
  client.mhz = 495;
  EXPECT_EQ(follower.follow(), policy.until - client.now);
  ASSERT_EQ(records.all.size(), 1u);
  const auto& clock = records.all[0].clock;
  EXPECT_EQ(clock.read_back_mhz, 495u);
  EXPECT_EQ(clock.call_id, 7u);
  EXPECT_EQ(clock.begin_ns, 1000 * kMs);
  EXPECT_EQ(clock.end_ns, 1002 * kMs);
}

TEST_F(Follower, ALowerClockWaitsForItsTurnAndAHigherOneDoesNot) {
  client.interval = 500 * kMs;
  policy.mhz = 480;
  follower.follow();
  policy.mhz = 600;
  follower.follow();
  policy.mhz = 500;
  EXPECT_EQ(follower.follow(), 496 * kMs) << "two calls of 2 ms after the first";
  client.now += 496 * kMs;
  follower.follow();
  EXPECT_EQ(client.sets, (std::vector<uint32_t>{480, 600, 500}));
  follower.reset(false);
  EXPECT_TRUE(follower.at_default());
}

TEST_F(Follower, WithoutAGrantAWishIsTriedOnceAndTheNextGrantCarriesItOut) {
  policy.mhz = 480;
  follower.follow();
  client.grants = 0;
  EXPECT_EQ(follower.follow(), 0u) << "the policy is asked again";
  EXPECT_TRUE(follower.at_default());
  follower.follow();
  follower.follow();
  EXPECT_EQ(policy.times_withheld, 2);
  EXPECT_EQ(follower.switches(), 1u);
  client.grants = 2;
  EXPECT_EQ(follower.follow(), 0u);
  follower.follow();
  EXPECT_EQ(client.sets, (std::vector<uint32_t>{480, 480}));
  ASSERT_EQ(records.all.size(), 4u);
  EXPECT_EQ(records.all[0].kind, POWERCCL_REC_NOTE);
  EXPECT_EQ(records.all[1].kind, POWERCCL_REC_CLOCK);
  EXPECT_EQ(records.all[2].clock.result, kClockNotNow);
  EXPECT_EQ(records.all[3].clock.result, 0);
}

}  // namespace

}  // namespace powerccl::test

namespace powerccl {
namespace {

TEST(NodeState, TheLeastOfAKindIsEverybodys) {
  const auto node = std::make_unique<NodeState>();
  EXPECT_EQ(node->least_us(1, 44000), 44000u);
  EXPECT_EQ(node->least_us(1, 27000), 27000u);
  EXPECT_LT(node->least_us(1, 44000), 27200u);
  EXPECT_EQ(node->least_us(2, 5000), 5000u);
  // It rises slowly, once no rank sees it any more.
  uint32_t last = 0;
  for (int i = 0; i < 2000; ++i) last = node->least_us(1, 44000);
  EXPECT_GT(last, 40000u);
}

TEST(NodeState, KindsThatFindNoPlaceAreLeftOut) {
  const auto node = std::make_unique<NodeState>();
  for (uint32_t kind = 1; kind <= 5000; ++kind) EXPECT_GT(node->least_us(kind, 100), 0u);
  EXPECT_EQ(node->least_us(9999, 77), 77u);
}

std::filesystem::path state_file(const test::Folder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with(".node-")) return entry.path();
  }
  return {};
}

TEST(NodeState, ItsMemoryIsOneForAHostAndNobodyElses) {
  auto folder = std::make_unique<test::Folder>();
  const std::string path = folder->path();
  NodeState* one = open_node_state(path.c_str());
  NodeState* other = open_node_state(path.c_str());
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  one->least_us(1, 1080);
  EXPECT_EQ(other->least_us(1, 2000), 1083u) << "1080, and a little more";
  const auto mode = std::filesystem::status(state_file(*folder)).permissions();
  EXPECT_EQ(static_cast<unsigned>(mode), 0600u);
  const test::Folder another;
  NodeState* others = open_node_state(another.path().c_str());
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->least_us(1, 2000), 2000u);
  folder.reset();
  EXPECT_EQ(open_node_state(path.c_str()), nullptr);
}

// A rank that is restarted finds the others'; once all have gone, the first one makes it anew.
TEST(NodeState, LivesAsLongAsAnybodyHasIt) {
  const test::Folder folder;
  const std::string path = folder.path();
  const auto in_child = [&](uint32_t sees) {
    const pid_t child = fork();
    if (child == 0) {
      NodeState* its = open_node_state(path.c_str());
      if (its == nullptr) _exit(255);
      _exit(static_cast<int>(its->least_us(1, sees)));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(in_child(100), 100);
  EXPECT_EQ(in_child(101), 101) << "the one before had nobody who kept it";
  NodeState* kept = open_node_state(path.c_str());
  ASSERT_NE(kept, nullptr);
  kept->least_us(1, 102);
  EXPECT_EQ(in_child(103), 102);
  EXPECT_EQ(in_child(99), 99);
  EXPECT_EQ(kept->least_us(1, 103), 99u);
}

// A store to a mapped file that somebody cut short would end the process.
TEST(NodeState, NothingThatHappensToItsFileEndsTheProcess) {
  const test::Folder folder;
  NodeState* node = open_node_state(folder.path().c_str());
  ASSERT_NE(node, nullptr);
  std::filesystem::resize_file(state_file(folder), 0);
  for (uint32_t kind = 1; kind <= 1024; ++kind) node->least_us(kind, 1080);
  NodeState* next = open_node_state(folder.path().c_str());
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->least_us(1, 2000), 2000u);
  folder.write(state_file(folder).filename(), "not what is told there, but as long");
  EXPECT_NE(open_node_state(folder.path().c_str()), nullptr);
}

TEST(NodeState, OfManyThatComeAtOnceAllHaveTheSame) {
  const test::Folder folder;
  std::vector<std::thread> threads;
  std::vector<NodeState*> had(16);
  for (NodeState*& each : had)
    threads.emplace_back([&each, &folder] { each = open_node_state(folder.path().c_str()); });
  for (auto& thread : threads) thread.join();
  had[0]->least_us(1, 7);
  for (NodeState* each : had) EXPECT_EQ(each->least_us(1, 100), 7u);
}

}  // namespace

}  // namespace powerccl
