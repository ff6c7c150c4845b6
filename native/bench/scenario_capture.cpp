// SPDX-License-Identifier: Apache-2.0
// CUDA's rule for captures over several streams: they begin on `compute`; another stream takes part from when it waits
// for one that does, and `compute` has waited for all of them, and for all they do, at the end.
#include <array>

#include "bench/failure.h"
#include "bench/scenario.h"

namespace powerccl::bench {
namespace {

uint32_t bit(size_t stream) {
  return 1U << stream;
}

[[noreturn]] void refuse(const Scenario& scenario, int line, const std::string& what, const std::string& right) {
  throw Failure(kExitUsage, scenario.file + ":" + std::to_string(line) + ": " + what, right);
}

}  // namespace

void check_capture(const Scenario& scenario, const std::vector<Operation>& body, int end_line) {
  std::array<uint32_t, kMaxStreams> behind{};  // by stream: those whose latest operation it waits for
  uint32_t members = bit(0);
  for (const Operation& operation : body) {
    const size_t stream = operation.stream;
    if (operation.act == Act::kWait) {
      if ((members & bit(operation.awaited)) == 0) {
        refuse(scenario, operation.line,
               "stream " + scenario.streams[operation.awaited] + " is not part of this capture",
               "let it wait for compute first");
      }
      members |= bit(stream);
      behind[stream] |= behind[operation.awaited] | bit(operation.awaited);
    }
    if ((members & bit(stream)) == 0) {
      refuse(scenario, operation.line, "stream " + scenario.streams[stream] + " is not part of this capture",
             "wait compute on " + scenario.streams[stream]);
    }
    for (size_t other = 0; other < kMaxStreams; ++other) {
      if (other != stream) behind[other] &= ~bit(stream);
    }
  }
  for (size_t stream = 1; stream < scenario.streams.size(); ++stream) {
    if ((members & ~behind[0] & bit(stream)) == 0) continue;
    const std::string& name = scenario.streams[stream];
    refuse(scenario, end_line, "compute does not wait for stream " + name + " before the capture ends",
           "wait " + name + " on compute");
  }
}

}  // namespace powerccl::bench
