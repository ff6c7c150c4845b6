// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/marks.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace powerccl::nccl {
namespace {

TEST(Marks, ComeAllAtOnceAndThenNotUntilAWholeBurstIsThere) {
  Marks marks;
  int afforded = 0;
  uint32_t burst = 0;
  while (afforded < 5000 && marks.affordable(&burst)) ++afforded;
  EXPECT_GE(afforded, 1024);
  EXPECT_LT(afforded, 5000);
  // Worth several marks, but no burst.
  usleep(20000);
  EXPECT_FALSE(marks.affordable(&burst));
  EXPECT_EQ(burst, 1u);
}

}  // namespace
}  // namespace powerccl::nccl
