// SPDX-License-Identifier: Apache-2.0
// The library's one connection to the server, and what every call on a GPU has in common.
#pragma once
#include <nvml.h>

#include <bit>
#include <cstdint>

#include "emulator/client/connection.h"
#include "physics/readings.h"

namespace powerccl::emulator {

// Faults of the emulated NVML that tests ask for, by environment variables (native/abi/environment.def).
// The code that this call is to fail with, or 0.
nvmlReturn_t injected(const char* call);

// Real time on the calling thread, as a driver that is busy elsewhere costs: the call itself is made only then.
void dawdle(const char* call);

// What becomes of a call on this GPU now: it waits until the GPU hangs no longer, or fails because the GPU is lost.
// Times count from this process's first nvmlInit.
nvmlReturn_t gpu_fault(uint32_t gpu);

nvmlReturn_t begin_session();  // one use more; the first connects
nvmlReturn_t end_session();    // one less

// A handle is the GPU's number, shifted away from null.
inline nvmlDevice_t handle_of(uint32_t gpu) {
  return std::bit_cast<nvmlDevice_t>(static_cast<uintptr_t>(gpu) + 1);
}

struct Access {
  nvmlReturn_t result;
  Connection* connection = nullptr;
  uint32_t gpu = 0;
};
Access access();
// Waits while the GPU hangs; fails if it is lost.
Access access(nvmlDevice_t device);

// What `take(board, gpu)` returns. A null target is refused.
template <typename F>
nvmlReturn_t on_gpu(nvmlDevice_t device, const void* target, F take) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (target == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return take(accessed.connection->board(), accessed.gpu);
}

// A GPU's readings as of now. `call` names the reading for failure injection.
nvmlReturn_t read_now(nvmlDevice_t device, const char* call, const void* target, Readings* readings,
                      const BoardPage** board);
template <typename F>
nvmlReturn_t reading(nvmlDevice_t device, const char* call, const void* target, F take) {
  Readings readings;
  const BoardPage* board = nullptr;
  const nvmlReturn_t result = read_now(device, call, target, &readings, &board);
  if (result == NVML_SUCCESS) take(readings, *board);
  return result;
}

// Returns when the real call would. 0, 0: back to the driver's own clock.
nvmlReturn_t set_clocks(nvmlDevice_t device, const char* call, unsigned min_mhz, unsigned max_mhz);

}  // namespace powerccl::emulator
