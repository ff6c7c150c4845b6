// SPDX-License-Identifier: Apache-2.0
// What the driver says of a device, and what comes of a call to it.
#pragma once
#include <cstdint>
#include <string>

namespace powerccl::daemon {

struct DeviceAbout {
  std::string device;  // as leases name it: "GPU-<uuid>"
  std::string pci;     // another name for the same; may be empty
  std::string name;    // "Tesla T4"
  std::string file;    // what a client must be able to open; empty: nothing
  uint32_t lowest_mhz = 0, highest_mhz = 0;
  std::string unfit;  // why it cannot be leased; empty: it can
};

struct Outcome {
  int code = 0;            // native/node/device's; 0: done
  bool untouched = false;  // it failed, and before anything changed
  uint32_t now_mhz = 0;    // read back; 0: not read
  uint64_t reasons = 0;
  uint32_t limit_mw = 0;  // enforced power limit; 0: not read
  uint32_t driver_us = 0;
  std::string text;  // of a failure
};

}  // namespace powerccl::daemon
