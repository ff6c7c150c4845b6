// SPDX-License-Identifier: Apache-2.0
// Who the ranks of this run are, their processes, and the supervisor that notices when one of them dies.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "bench/board.h"
#include "bench/options.h"

namespace powerccl::bench {

// What a launcher (torchrun, mpirun, srun) put into the environment.
struct LauncherPlace {
  int rank, ranks, local_rank;
  std::string key;  // the same for all processes of one launch, different from other launches'
};
// Nothing if no launcher set a rank. Throws Failure where the launch spans hosts, or its variables contradict.
std::optional<LauncherPlace> launcher_place(const Options& options);

struct Launch {
  const char* kind;  // "processes", "threads", "launcher"
  Board* board;
  int first_rank, local_ranks;
  bool threads;
  int first_device;
  bool leads() const { return first_rank == 0; }
};
// Counts GPUs where -g does not say, and makes or finds the board. Touches neither CUDA nor NVML in this process.
Launch prepare_launch(const Options& options);

// Forks the local ranks' processes, each of which runs `ranks(first, count, device)` and exits with what it returns.
// Then runs `lead` (rank 0's supervisor alone) on a thread while it waits for the processes. It passes failures,
// signals and missed deadlines on to the board, and kills processes that do not end. Returns when all are gone and
// `lead` is back.
void supervise(const Launch& launch, const std::function<int(int, int, int)>& ranks, const std::function<void()>& lead);

}  // namespace powerccl::bench
