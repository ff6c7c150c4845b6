// SPDX-License-Identifier: Apache-2.0
// What sets clocks: one driver for GPUs (NVML), one for processor cores (cpufreq). Of a driver's calls one is made at a
// time; about() and mark_of() may be called beside it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace powerccl::daemon {

struct DeviceAbout {
  std::string device;  // as leases name it: "GPU-<uuid>", "cpu3"
  std::string pci;     // another name for the same; may be empty
  std::string name;    // "Tesla T4"
  std::string file;    // what a client must be able to open; empty: nothing
  int cpu = -1;        // of a core
  uint32_t lowest_mhz = 0, highest_mhz = 0;
  std::string unfit;  // why it cannot be leased; empty: it can
};

struct Outcome {
  int code = 0;            // native/device's; 0: done
  bool untouched = false;  // it failed, and before anything changed
  uint32_t now_mhz = 0;    // read back; 0: not read
  uint64_t reasons = 0;
  uint32_t driver_us = 0;
  std::string text;  // of a failure
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual const std::vector<DeviceAbout>& about() const = 0;
  // What the state file should hold to have the device restored: the name, and of a core its present clock. Called
  // while it has its default clock. Empty: that cannot be told now.
  virtual std::string mark_of(size_t index) = 0;

  virtual Outcome set(size_t index, uint32_t min_mhz, uint32_t max_mhz) = 0;
  virtual Outcome restore(size_t index, const std::string& mark) = 0;
  virtual Outcome read(size_t index) = 0;
};

}  // namespace powerccl::daemon
