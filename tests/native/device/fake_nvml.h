// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml for tests: it answers from, and records into, a file that the test maps too (FAKE_NVML_STATE), so that
// a test sees what another process, such as powerccl-agent, asked of it.
#pragma once
#include <stdint.h>

constexpr unsigned kFakeGpus = 3;

enum FakeFunction : unsigned {
  kFakeInit,
  kFakeCount,
  kFakeByIndex,
  kFakeLock,
  kFakeReset,
  kFakePower,
  kFakePowerField,
  kFakePowerLimit,
  kFakeEnergy,
  kFakeClock,
  kFakeOther,
  kFakeFunctions,
};

struct FakeGpu {
  uint32_t locked_mhz;  // 0: not locked
  uint32_t locks, resets;
  uint32_t lost;   // 1: every call on this GPU answers GPU_IS_LOST
  uint32_t hangs;  // 1: every call on this GPU waits until it is 0
  uint32_t power_mw, clock_mhz;
  uint64_t energy_mj;
};

struct FakeState {
  uint32_t gpus, architecture;
  uint32_t energy_read_us;  // processor time that a read of the energy counter takes
  uint32_t temperature_c, utilization_pct, power_limit_mw, power_limit_max_mw;
  int32_t result[kFakeFunctions];          // what the function answers instead of success ...
  uint32_t succeed_first[kFakeFunctions];  // ... after this many successes ...
  uint32_t fail_only[kFakeFunctions];      // ... and so many times; 0: for ever
  uint32_t calls[kFakeFunctions];
  FakeGpu gpu[kFakeGpus];
};

// "GPU-00000000-0000-0000-0000-00000000000<index>" and "0000000<index>:01:00.0".
#define FAKE_UUID_FORMAT "GPU-00000000-0000-0000-0000-00000000000%u"
#define FAKE_PCI_FORMAT "0000000%u:01:00.0"
