// SPDX-License-Identifier: Apache-2.0
// Built-in platforms, for tests.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "physics/platform.h"

namespace powerccl::physics {

// `changes`: as they follow a platform's file, such as ":link_scale=4".
inline Platform platform_or_fail(const std::string& name, const std::string& changes = "") {
  std::string error;
  const auto platform = read_platform(std::string(POWERCCL_PLATFORMS) + "/" + name + ".conf" + changes, error);
  if (!platform) ADD_FAILURE() << error;
  return platform.value_or(Platform{});
}

// GPUs whose clock nothing but locks changes: durations follow by hand.
inline Platform steady() {
  Platform platform = platform_or_fail("t4x8");
  platform.power_limit_w = 1e6;
  platform.peak_limit_w = 0;
  platform.reference_clock_mhz = platform.clock_max_mhz;
  platform.memory_bound_share = 0;
  platform.kernel_launch_us = 10;
  return platform;
}

}  // namespace powerccl::physics
