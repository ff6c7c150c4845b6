// SPDX-License-Identifier: Apache-2.0
// Any text as a scenario, for two and for eight ranks: it is read within its limits, or refused with file and reason in
// a line fit for a terminal.
#include <string>

#include "bench/scenario.h"
#include "bench/values.h"
#include "fuzz.h"

using namespace powerccl::bench;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Scenario scenario = parse_scenario({reinterpret_cast<const char*>(data), size}, "input.scn");
    REQUIRE(scenario.name == "input" && scenario.iterations >= 1);
    for (const Section& section : scenario.sections) {
      REQUIRE(!section.operations.empty() && section.operations.size() <= kMaxOperations + 1);
      for (const Operation& operation : section.operations) {
        REQUIRE(operation.act == Act::kCollective || operation.way == Way::kAsGiven);
        REQUIRE(operation.way == Way::kAsGiven ||
                (carries_out(operation.way, operation.pattern) && operation.vary <= 0));
        REQUIRE(operation.stream < scenario.streams.size() && operation.awaited < scenario.streams.size());
        REQUIRE(operation.group < scenario.groups.size() && operation.ms >= 0);
      }
    }
    for (const int ranks : {2, 8}) check_ranks(scenario, ranks);
  } catch (const Failure& failure) {
    const std::string what = failure.what();
    REQUIRE(failure.code() == kExitUsage && what.find("input.scn") != std::string::npos);
    require_printable(what.c_str(), what.size() + 1);
    require_printable(failure.hint().c_str(), failure.hint().size() + 1);
  }
  return 0;
}
