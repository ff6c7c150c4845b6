// SPDX-License-Identifier: Apache-2.0
// Any text as an emulated platform: what is accepted has finite times and powers at every size and clock, and what is
// refused names the file and says why in lines fit for a terminal. Behind a NUL byte come changes, as after a path.
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz.h"
#include "physics/platform.h"

using namespace powerccl::physics;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  std::vector<std::string> changes;
  std::istringstream rest(split == std::string::npos ? "" : input.substr(split + 1));
  for (std::string change; std::getline(rest, change, ',');) changes.push_back(change);
  std::string error;
  const auto platform = parse_platform(input.substr(0, split), "input.conf", changes, error);
  if (!platform) {
    REQUIRE(error.rfind("input.conf:", 0) == 0);
    require_printable(error.c_str(), error.size() + 1);
    return 0;
  }
  REQUIRE(platform->gpus >= 1 && platform->gpus <= 16 && platform->memory_bytes > 0);
  for (const double clock : {1.0 * platform->clock_min_mhz, 1.0 * platform->clock_max_mhz}) {
    REQUIRE(platform->snap_mhz(clock) <= platform->clock_max_mhz);
    for (size_t pattern = 0; pattern < kPatterns; ++pattern)
      for (const double bytes : {0.0, 8.0, 1e6, 1e12}) {
        const double ns = platform->collective_ns(static_cast<Pattern>(pattern), bytes, clock, 4);
        REQUIRE(!std::isnan(ns) && ns >= 0);
      }
  }
  return 0;
}
