// SPDX-License-Identifier: Apache-2.0
// Faults of the emulated NVML that tests ask for, by environment variables (native/abi/environment.def).
#pragma once
#include <nvml.h>

#include <cstdint>

namespace powerccl::emulator {

// The code that this call is to fail with, or 0.
nvmlReturn_t injected(const char* call);

// Real time on the calling thread, as a driver that is busy elsewhere costs: the call itself is made only then.
void dawdle(const char* call);

// What becomes of a call on this GPU now: it waits until the GPU hangs no longer, or fails because the GPU is lost.
// Times count from this process's first nvmlInit.
nvmlReturn_t gpu_fault(uint32_t gpu);

}  // namespace powerccl::emulator
