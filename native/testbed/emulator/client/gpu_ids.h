// SPDX-License-Identifier: Apache-2.0
// POWERCCL_EMULATOR_MIG="0,2": GPUs that are cut into slices, of which a process sees one, as CUDA shows it.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace powerccl::emulator {

inline bool in_mig_mode(uint32_t gpu) {
  const char* setting = std::getenv("POWERCCL_EMULATOR_MIG");
  const std::string listed = "," + std::string(setting != nullptr ? setting : "") + ",";
  return listed.find("," + std::to_string(gpu) + ",") != std::string::npos;
}

// The slice's UUID differs from its GPU's in the first byte.
constexpr unsigned char kSliceMask = 0x5a;

inline std::string slice_uuid(const char* gpu_uuid) {
  std::string text = "MIG-" + std::string(gpu_uuid).substr(std::strlen("GPU-"));
  const auto first = static_cast<unsigned char>(std::stoul(text.substr(4, 2), nullptr, 16) ^ kSliceMask);
  constexpr char kDigits[] = "0123456789abcdef";
  text[4] = kDigits[first >> 4];
  text[5] = kDigits[first & 15];
  return text;
}

// PCI bus ids as CUDA ("0000:3B:00.0") and NVML ("00000000:3B:00.0") write them.
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
