// SPDX-License-Identifier: Apache-2.0
// PCI bus ids as CUDA ("0000:3B:00.0") and NVML ("00000000:3B:00.0") write them.
#pragma once
#include <cstdlib>

namespace powerccl::emulator {

// False: not a bus id, or one of another domain than the emulated GPUs'.
inline bool parse_bus_id(const char* text, unsigned long& bus) {
  char* end = nullptr;
  const unsigned long domain = std::strtoul(text, &end, 16);
  if (end == text || *end != ':' || domain != 0) return false;
  const char* number = end + 1;
  bus = std::strtoul(number, &end, 16);
  return end != number && *end == ':';
}

}  // namespace powerccl::emulator
