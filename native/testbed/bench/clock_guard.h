// SPDX-License-Identifier: Apache-2.0
// Locked clocks outlive the process that set them, so they are set by a child process that notices the end of its
// parent, whatever that end is, and then restores the default clocks. Or somebody else is asked who does so, as
// `powerccl profile` does that holds leases on the GPUs. docs/reference/bench.md has what is said to either.
#ifndef POWERCCL_BENCH_CLOCK_GUARD_H
#define POWERCCL_BENCH_CLOCK_GUARD_H
#include <sys/types.h>

#include <string>

#include "bench/board.h"

namespace powerccl::bench {

class ClockGuard {
 public:
  // Forks the guard; call before this process has loaded NVML, whose state does not survive a fork. The GPUs are those
  // `board` names when the first clock is set. Without `consent` only emulated clocks are touched.
  ClockGuard(const Board& board, bool consent);
  // Asks at that socket, which is its own from now on, instead of forking.
  explicit ClockGuard(int socket);
  ~ClockGuard();
  ClockGuard(const ClockGuard&) = delete;
  ClockGuard& operator=(const ClockGuard&) = delete;

  // Locks the SM clock of all GPUs, or resets it (mhz 0). Returns "" or what the driver said.
  std::string set(int mhz);
  // Whether the clock that was set last holds still: "", or why not.
  std::string check();

 private:
  std::string ask(int32_t request);

  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace powerccl::bench
#endif
