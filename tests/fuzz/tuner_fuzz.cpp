// SPDX-License-Identifier: Apache-2.0
// Any text as a tuner table: what is accepted decides within the ABI's numbers, and what is refused leaves an empty
// table and says why in a line fit for a terminal.

#include "abi/nccl_tuner.h"
#include "adapters/nccl/tuner_table.h"
#include "fuzz.h"

using namespace powerccl::nccl;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TunerTable table;
  TunerTable::Refusal refusal;
  const bool good = table.parse({reinterpret_cast<const char*>(data), size}, &refusal);
  REQUIRE(good == (refusal.reason[0] == '\0'));
  require_printable(refusal.reason, sizeof refusal.reason);
  REQUIRE(good || table.count() == 0);
  REQUIRE(table.count() <= TunerTable::kMaxRules);
  for (int collective = -1; collective < 8; ++collective) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1} << 20, UINT64_MAX}) {
      const TunerDecision decision = decide(table, {2, 16}, collective, bytes, 1, 0);
      REQUIRE(decision.algorithm >= -1 && decision.algorithm <= kAlgorithmPat);
      REQUIRE(decision.protocol >= -1 && decision.protocol <= kProtocolSimple);
      REQUIRE(decision.channels >= 0 && decision.channels <= kMaxChannels);
      // NCCL's table may be smaller than what the decision names.
      float costs[2 * 3] = {1, 2, 3, 4, 5, 6};
      int channels = 7;
      put(decision, costs, 2, 3, &channels);
    }
  }
  return 0;
}
