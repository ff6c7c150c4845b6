// SPDX-License-Identifier: Apache-2.0
#include "abi/host_clock.h"

#include <gtest/gtest.h>

namespace powerccl {
namespace {

TEST(HostClock, OffsetsAsTheKernelStatesThem) {
  constexpr char kOffsets[] = "monotonic       86400         5\nboottime           -2 500000000\n";
  EXPECT_EQ(time_shift_in(kOffsets, "monotonic"), 86400000000005);
  EXPECT_EQ(time_shift_in(kOffsets, "boottime"), -1500000000);
  EXPECT_EQ(time_shift_in("", "monotonic"), 0);
  EXPECT_EQ(time_shift_in("monotonic", "monotonic"), 0);
}

}  // namespace
}  // namespace powerccl
