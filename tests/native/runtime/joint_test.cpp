// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "runtime/joint_memory.h"
#include "trace_reader.h"

namespace powerccl {
namespace {

constexpr uint64_t kPatience = 1000;

TEST(Joint, NothingIsManagedBeforeAnybodySaysSo) {
  const auto joint = std::make_unique<Joint>();
  EXPECT_TRUE(joint->mode_at(5).control);
  EXPECT_EQ(joint->mode_at(5).mhz, 0u);
}

TEST(Joint, TheFirstLeadsUntilItFallsSilent) {
  const auto joint = std::make_unique<Joint>();
  EXPECT_TRUE(joint->lead(7, 100, kPatience));
  EXPECT_FALSE(joint->lead(8, 200, kPatience));
  joint->say({false, 900}, 900, 800);
  EXPECT_FALSE(joint->lead(8, 1500, kPatience));
  EXPECT_TRUE(joint->lead(8, 1900, kPatience));
  EXPECT_FALSE(joint->lead(7, 1950, kPatience));
}

TEST(Joint, WhatEachReceivesIsKnownByItsKey) {
  const auto joint = std::make_unique<Joint>();
  EXPECT_EQ(joint->loads(0, 77).ranks, 0u);
  joint->tell_load(0, 77, 600, 12000);
  joint->tell_load(3, 77, 900, 15000);
  const Joint::Loads found = joint->loads(0, 77);
  EXPECT_EQ(found.ranks, 2u);
  EXPECT_EQ(found.most_kib, 900u);
  EXPECT_EQ(found.most_us, 15000u);
  EXPECT_EQ(found.own_us, 12000u);
  EXPECT_FALSE(found.unknown);
  joint->tell_load(3, 77 + 1024, 100, 0);  // a later one, in the same place
  EXPECT_EQ(joint->loads(0, 77).ranks, 1u);
  EXPECT_TRUE(joint->loads(0, 77 + 1024).unknown);
  joint->tell_load(1, 78, UINT32_MAX, UINT32_MAX);  // as much as there is room for
  EXPECT_EQ(joint->loads(1, 78).most_kib, (1u << 20) - 1);
}

TEST(Joint, EachGpuHasItsPlace) {
  const auto joint = std::make_unique<Joint>();
  EXPECT_EQ(joint->places(), 0u);
  EXPECT_EQ(joint->place(70), 0u);
  EXPECT_EQ(joint->place(80), 1u);
  EXPECT_EQ(joint->place(70), 0u);
  EXPECT_EQ(joint->places(), 2u);
  for (uint64_t gpu = 100; gpu < 200; ++gpu) EXPECT_LT(joint->place(gpu), 32u);
  EXPECT_EQ(joint->place(80), 1u);
}

TEST(Joint, WhatIsSaidHoldsFromItsTimeOn) {
  const auto joint = std::make_unique<Joint>();
  joint->say({false, 900}, 1000, 500);
  EXPECT_TRUE(joint->mode_at(999).control);
  EXPECT_FALSE(joint->mode_at(1000).control);
  EXPECT_EQ(joint->mode_at(1000).mhz, 900u);
  EXPECT_TRUE(joint->mode_at(1000).windows);
  joint->say({true, 0, false}, 2000, 1500);
  EXPECT_EQ(joint->mode_at(1999).mhz, 900u);
  EXPECT_TRUE(joint->mode_at(1999).windows);
  EXPECT_FALSE(joint->mode_at(2000).windows);
  EXPECT_TRUE(joint->mode_at(2000).slack);
  joint->say({false, 0, true, false}, 3000, 2500);
  EXPECT_FALSE(joint->mode_at(3000).slack);
  EXPECT_TRUE(joint->mode_at(3000).windows);
  EXPECT_TRUE(joint->mode_at(2000).control);
}

TEST(Joint, TheLeastOfAKindIsEverybodys) {
  const auto joint = std::make_unique<Joint>();
  EXPECT_EQ(joint->least_us(1, 44000), 44000u);
  EXPECT_EQ(joint->least_us(1, 27000), 27000u);
  EXPECT_LT(joint->least_us(1, 44000), 27200u);
  EXPECT_EQ(joint->least_us(2, 5000), 5000u);
  // It rises when nobody sees it any more, slowly.
  uint32_t last = 0;
  for (int i = 0; i < 2000; ++i) last = joint->least_us(1, 44000);
  EXPECT_GT(last, 40000u);
}

TEST(Joint, KindsThatFindNoPlaceAreLeftOut) {
  const auto joint = std::make_unique<Joint>();
  for (uint32_t kind = 1; kind <= 5000; ++kind) EXPECT_GT(joint->least_us(kind, 100), 0u);
  EXPECT_EQ(joint->least_us(9999, 77), 77u);
}

std::filesystem::path joint_file(const test::Folder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with(".joint-")) return entry.path();
  }
  return {};
}

TEST(Joint, ItsMemoryIsOneForAHostAndNobodyElses) {
  auto folder = std::make_unique<test::Folder>();
  const std::string path = folder->path();
  Joint* one = open_joint(path.c_str());
  Joint* other = open_joint(path.c_str());
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  one->say({false, 1080}, 1, 1);
  EXPECT_EQ(other->mode_at(2).mhz, 1080u);
  const auto mode = std::filesystem::status(joint_file(*folder)).permissions();
  EXPECT_EQ(static_cast<unsigned>(mode), 0600u);
  const test::Folder another;
  Joint* others = open_joint(another.path().c_str());
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->mode_at(2).mhz, 0u);
  folder.reset();
  EXPECT_EQ(open_joint(path.c_str()), nullptr);
}

// A rank that is restarted finds the others'; once all have gone, the first one makes it anew.
TEST(Joint, LivesAsLongAsAnybodyHasIt) {
  const test::Folder folder;
  const std::string path = folder.path();
  const auto in_child = [&](uint32_t says) {
    const pid_t child = fork();
    if (child == 0) {
      Joint* its = open_joint(path.c_str());
      if (its == nullptr) _exit(255);
      const uint32_t before = its->mode_at(2).mhz;
      its->say({false, says}, 1, 1);
      _exit(static_cast<int>(before));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(in_child(100), 0);
  EXPECT_EQ(in_child(101), 0);
  Joint* kept = open_joint(path.c_str());
  ASSERT_NE(kept, nullptr);
  kept->say({false, 102}, 1, 1);
  EXPECT_EQ(in_child(103), 102);
  EXPECT_EQ(kept->mode_at(2).mhz, 103u);
}

// A store to a mapped file that somebody cut short would end the process.
TEST(Joint, NothingThatHappensToItsFileEndsTheProcess) {
  const test::Folder folder;
  Joint* joint = open_joint(folder.path().c_str());
  ASSERT_NE(joint, nullptr);
  std::filesystem::resize_file(joint_file(folder), 0);
  joint->say({false, 1080}, 1, 1);
  for (uint32_t key = 0; key < 1024; ++key) joint->tell_load(joint->place(1), key, 1, 1);
  Joint* next = open_joint(folder.path().c_str());
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->mode_at(2).mhz, 0u);
  folder.write(joint_file(folder).filename(), "not what is told there, but as long");
  EXPECT_NE(open_joint(folder.path().c_str()), nullptr);
}

TEST(Joint, OfManyThatComeAtOnceAllHaveTheSame) {
  const test::Folder folder;
  std::vector<std::thread> threads;
  std::vector<Joint*> had(16);
  for (Joint*& each : had) threads.emplace_back([&each, &folder] { each = open_joint(folder.path().c_str()); });
  for (auto& thread : threads) thread.join();
  had[0]->say({false, 7}, 1, 1);
  for (const Joint* each : had) EXPECT_EQ(each->mode_at(2).mhz, 7u);
}

TEST(Joint, TheQuickestCallAndTurnsAreEverybodys) {
  Joint joint;
  EXPECT_EQ(joint.quickest_call_ns(9000), 9000u);
  EXPECT_EQ(joint.quickest_call_ns(4500), 4500u);
  EXPECT_EQ(joint.quickest_call_ns(30000), 4500u);
  EXPECT_FALSE(joint.turns());
  joint.take_turns();
  EXPECT_TRUE(joint.turns());
}

}  // namespace
}  // namespace powerccl
