// SPDX-License-Identifier: Apache-2.0
// Setting, resetting and reading back the SM clock of one GPU through NVML.
//
// The caller sees to consent (--set-clocks, an emulated server, dry) and to the mark in the state file before it calls
// clock_lock. NVML is loaded with dlopen once a process and never unloaded. All
// functions may be called from any thread; calls on one GPU are serialised by the driver. Nothing here throws, exits or
// aborts; a lost GPU, missing rights or a function that this NVML lacks come back as an error code (error.h). Source of
// facts: NVIDIA's nvml.h, and docs/concepts/hardware.md for durations (a locked-clock call takes milliseconds).
#pragma once
#include <stdint.h>

#include "device/error.h"

namespace powerccl::device {

struct NvmlFunctions;  // nvml_library.h

struct ClockDevice {
  const NvmlFunctions* nvml = nullptr;  // null: not open
  void* handle = nullptr;               // nvmlDevice_t
  uint32_t index = 0;                   // NVML's index, which CUDA_VISIBLE_DEVICES does not change
  char uuid[48] = "";                   // "GPU-..."
  char pci[20] = "";                    // "00000000:65:00.0"
  char name[64] = "";                   // "Tesla T4"
};

// Loads and initialises NVML if this has not happened yet. Finds the GPU by UUID, or by PCI bus id ("65:00.0",
// "0000:65:00.0", "00000000:65:00.0"). "MIG-..." is refused: a MIG slice has no clock of its own.
// Library: POWERCCL_NVML_LIBRARY if set, else libnvidia-ml.so.1.
int clock_open(ClockDevice* device, const char* uuid_or_pci, Error* error);

// Ends this use of NVML. The clock is left as it is.
void clock_close(ClockDevice* device);

// nvmlDeviceSetGpuLockedClocks: 0 < min_mhz <= max_mhz. Needs root (CAP_SYS_ADMIN) and outlives the process.
int clock_lock(ClockDevice* device, uint32_t min_mhz, uint32_t max_mhz, Error* error);

// Whether a clock_lock that ended with this code was turned away before anything changed (no right, not supported, not
// a clock of this GPU). After any other failure the clock may be locked or not.
bool clock_refused(int code);

// nvmlDeviceResetGpuLockedClocks: back to the driver's own choice, whichever process had set a lock.
int clock_reset(ClockDevice* device, Error* error);

// SM clock now, in MHz. Locking is only accepted, not guaranteed, so read back what came of it.
int clock_read_sm_mhz(ClockDevice* device, uint32_t* sm_mhz, Error* error);

// The highest SM clock that the GPU offers, in MHz.
int clock_max_sm_mhz(ClockDevice* device, uint32_t* max_mhz, Error* error);

// The lowest SM clock that it offers at its highest memory clock, in MHz.
int clock_min_sm_mhz(ClockDevice* device, uint32_t* min_mhz, Error* error);

// N of the GPU's device file /dev/nvidiaN.
int clock_minor_number(ClockDevice* device, uint32_t* minor, Error* error);

// Whether the GPU is cut into MIG slices, whose owners all share its clock. False where it cannot be.
bool clock_mig_enabled(ClockDevice* device);

// nvmlDeviceGetCurrentClocksEventReasons (or its older name ...ThrottleReasons): why the clock is not higher.
int clock_throttle_reasons(ClockDevice* device, uint64_t* reasons, Error* error);

// The power limit that is enforced now, in mW. An administrator may change it at any time.
int clock_power_limit(ClockDevice* device, uint32_t* limit_mw, Error* error);

// Whether the NVML that clock_open found is the emulator's (it exports powerccl_emulator_version): consent is implied.
bool clock_emulated(const ClockDevice* device);

// Whether this process may lock clocks, judged without trying: the function exists, and the process has CAP_SYS_ADMIN
// (or NVML is the emulator's). When not, `error` says why.
bool clock_may_lock(const ClockDevice* device, Error* error);

}  // namespace powerccl::device
