// SPDX-License-Identifier: Apache-2.0
// Any text as a policy table: what is accepted answers every question within its own clocks, and what is refused leaves
// an empty table and says why in a line fit for a terminal.

#include "clock/policy_table.h"
#include "fuzz.h"

using powerccl::PolicyTable;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static PolicyTable table;
  PolicyTable::Refusal refusal;
  const bool good = table.parse({reinterpret_cast<const char*>(data), size}, &refusal);
  REQUIRE(good == (refusal.reason[0] == '\0'));
  require_printable(refusal.reason, sizeof refusal.reason);
  REQUIRE(good || (table.gpus() == 0 && table.clock_max_mhz() == 0 && table.platform()[0] == '\0'));
  for (unsigned pattern = 0; pattern < 256; ++pattern) {
    for (unsigned bits = 0; bits < 64; ++bits) {
      for (const uint64_t bytes : {(uint64_t{1} << bits) - 1, uint64_t{1} << bits}) {
        const uint32_t mhz = table.lookup(static_cast<uint8_t>(pattern), bytes);
        REQUIRE(mhz == 0 || (good && mhz < table.clock_max_mhz()));
      }
    }
    if (pattern == POWERCCL_PATTERNS) pattern = 253;  // the rest are alike
  }
  return 0;
}
