// SPDX-License-Identifier: Apache-2.0
// A stream inside the engine: the submissions not complete yet, and how far the first of them is.
#ifndef POWERCCL_EMULATOR_STREAMS_H
#define POWERCCL_EMULATOR_STREAMS_H
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace powerccl::emulator {

enum class Stage : uint8_t {
  kIdle,       // nothing in it, or its front has not been looked at
  kLaunching,  // the front waits for its launch latency
  kRunning,
};

struct Stream {
  uint32_t client = 0;
  uint32_t gpu = 0;
  uint32_t slot = 0;
  Stage stage = Stage::kIdle;
  bool doomed = false;                       // goes when it is empty
  std::deque<std::vector<std::byte>> queue;  // messages as they were sent
  uint64_t timer = 0;                        // of the launch, or of the front's end
  uint64_t work = 0;                         // of a kernel
  uint64_t collective = 0;
  int64_t due = 0;  // a callback's end, if the client is faster
};

}  // namespace powerccl::emulator
#endif
