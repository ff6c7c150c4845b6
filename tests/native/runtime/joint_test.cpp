// SPDX-License-Identifier: Apache-2.0
#include "runtime/joint.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "runtime/environment.h"

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

TEST(Joint, ItsPageIsOneForAHostAndNobodyElses) {
  char folder[] = "/tmp/powerccl-joint-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  Joint* one = open_joint(folder);
  Joint* other = open_joint(folder);
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  one->say({false, 1080}, 1, 1);
  EXPECT_EQ(other->mode_at(2).mhz, 1080u);
  uint8_t boot[16] = {};
  read_boot_id(boot);
  char name[32];
  snprintf(name, sizeof(name), "/.joint-%02x%02x%02x%02x%02x%02x", boot[0], boot[1], boot[2], boot[3], boot[4], boot[5]);
  const std::string path = std::string(folder) + name;
  struct stat about;
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0600u);
  EXPECT_GE(about.st_blocks * 512, about.st_size) << "a store to a page without a block ends the job on a full disk";
  unlink(path.c_str());
  rmdir(folder);
  EXPECT_EQ(open_joint(folder), nullptr);
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
