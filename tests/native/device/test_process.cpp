// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "device/process.h"

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
