// SPDX-License-Identifier: Apache-2.0
// The policy table (docs/reference/policy-table.md): parsed without a library, refused as a whole if a line is wrong.
#pragma once
#include <stdint.h>

#include <string_view>

#include "abi/trace.h"

namespace powerccl {

class PolicyTable {
 public:
  static constexpr int kMaxLines = 256;       // blank lines and comments not counted
  static constexpr int kMaxLineLength = 160;  // without the newline
  static constexpr uint32_t kMaxFileBytes = 256 * 1024;

  struct Refusal {
    int line = 0;  // from 1; 0: the file as a whole
    char reason[120] = "";
  };

  // Returns true and fills the table, or false and says what is wrong; then the table is empty.
  bool parse(std::string_view text, Refusal* refusal);

  // The same from a file.
  bool load(const char* path, Refusal* refusal);

  // The clock, in MHz, that `bytes` of `pattern` are to run at; 0: leave it alone, below the overhead point too.
  uint32_t lookup(uint8_t pattern, uint64_t bytes) const {
    if (pattern >= POWERCCL_PATTERNS || bytes < patterns_[pattern].overhead_bytes) return 0;
    const Pattern& entry = patterns_[pattern];
    // The last range that begins at or below `bytes`.
    uint32_t low = entry.first, high = entry.first + entry.count;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (ranges_[middle].from <= bytes) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == entry.first) return 0;
    const Range& range = ranges_[low - 1];
    return bytes < range.to && range.mhz < clock_max_mhz_ ? range.mhz : 0;
  }

  const char* platform() const { return platform_; }
  const char* gpu() const { return gpu_; }
  uint32_t gpus() const { return gpus_; }
  uint32_t clock_max_mhz() const { return clock_max_mhz_; }

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Range {
    uint64_t from, to;
    uint32_t mhz;
  };
  struct Pattern {
    uint64_t overhead_bytes = kNever;  // a pattern that the table does not name is never managed
    bool named = false;
    uint32_t first = 0, count = 0;  // in ranges_, where a pattern's lines are together
  };
  class Parser;

  char platform_[64] = "";
  char gpu_[64] = "";
  uint32_t gpus_ = 0, clock_max_mhz_ = 0;
  Pattern patterns_[POWERCCL_PATTERNS];
  Range ranges_[kMaxLines];
  uint32_t range_count_ = 0;
};

}  // namespace powerccl
