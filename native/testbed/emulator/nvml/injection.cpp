// SPDX-License-Identifier: Apache-2.0
#include "emulator/nvml/injection.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "emulator/client/connection.h"

namespace powerccl::emulator {
namespace {

constexpr double kForEverS = 1e9;  // 30 years

// The entries of a setting, which commas divide; none where it is not set.
std::vector<std::string> entries_of(const char* variable) {
  std::vector<std::string> entries;
  const char* setting = getenv(variable);
  std::string text = setting != nullptr ? setting : "";
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    entries.push_back(text.substr(0, comma));
    text.erase(0, comma + 1);
  }
  return entries;
}

// What follows `key` in an entry; null where it has unknown key.
const char* value_of(const std::string& entry, const char* key) {
  const size_t at = entry.find(key);
  return at == std::string::npos ? nullptr : entry.c_str() + at + strlen(key);
}

long number_of(const std::string& entry, const char* key, long otherwise) {
  const char* value = value_of(entry, key);
  return value == nullptr ? otherwise : std::strtol(value, nullptr, 10);
}

// ---- POWERCCL_EMULATOR_NVML_FAIL="set_locked_clocks:after=3:code=15,power:after=0:code=3"
// ---- POWERCCL_EMULATOR_NVML_SLOW="set_locked_clocks:ms=20:every=7"

struct Fault {
  explicit Fault(const std::string& entry)
      : call(entry.substr(0, entry.find(':'))),
        after(number_of(entry, ":after=", 0)),
        code(number_of(entry, ":code=", NVML_ERROR_UNKNOWN)),
        ms(number_of(entry, ":ms=", 0)),
        every(std::max(number_of(entry, ":every=", 1), 1L)) {}
  std::string call;
  long after, code;  // of a call that fails
  long ms, every;    // of a call that is slow
  std::atomic<long> calls{0};
};

std::deque<Fault>* parse_faults(const char* variable) {
  auto* faults = new std::deque<Fault>();
  for (const std::string& entry : entries_of(variable)) faults->emplace_back(entry);
  return faults;
}

}  // namespace

nvmlReturn_t injected(const char* call) {
  static auto* failures = parse_faults("POWERCCL_EMULATOR_NVML_FAIL");
  for (Fault& fault : *failures)
    if (fault.call == call && fault.calls.fetch_add(1) >= fault.after) return static_cast<nvmlReturn_t>(fault.code);
  return NVML_SUCCESS;
}

void dawdle(const char* call) {
  static auto* slow = parse_faults("POWERCCL_EMULATOR_NVML_SLOW");
  for (Fault& fault : *slow) {
    if (fault.call != call || (fault.calls.fetch_add(1) + 1) % fault.every != 0) continue;
    const timespec takes{fault.ms / 1000, fault.ms % 1000 * 1'000'000};
    nanosleep(&takes, nullptr);
  }
}

namespace {

// ---- POWERCCL_EMULATOR_NVML_GPU="3:hang:from=2:for=5,5:lost:from=1:in=powerccl-agent"

struct GpuFault {
  uint32_t gpu = 0;
  bool hangs = false;  // else it is lost
  uint64_t from_ns = 0, until_ns = UINT64_MAX;
};

std::vector<GpuFault> parse_gpu_faults() {
  std::vector<GpuFault> faults;
  const uint64_t now = monotonic_ns();
  for (const std::string& entry : entries_of("POWERCCL_EMULATOR_NVML_GPU")) {
    const auto seconds_ns = [&entry](const char* key, double otherwise) {
      const char* value = value_of(entry, key);
      return static_cast<uint64_t>(1e9 * (value == nullptr ? otherwise : std::strtod(value, nullptr)));
    };
    const char* program = value_of(entry, ":in=");
    if (program != nullptr && strcmp(program, program_invocation_short_name) != 0) continue;
    GpuFault fault;
    fault.gpu = static_cast<uint32_t>(std::strtoul(entry.c_str(), nullptr, 10));
    fault.hangs = value_of(entry, ":hang") != nullptr;
    fault.from_ns = now + seconds_ns(":from=", 0);
    fault.until_ns = fault.from_ns + seconds_ns(":for=", kForEverS);
    faults.push_back(fault);
  }
  return faults;
}

}  // namespace

nvmlReturn_t gpu_fault(uint32_t gpu) {
  static const auto* faults = new std::vector<GpuFault>(parse_gpu_faults());
  for (const GpuFault& fault : *faults) {
    uint64_t now = monotonic_ns();
    if (fault.gpu != gpu || now < fault.from_ns || now >= fault.until_ns) continue;
    if (!fault.hangs) return NVML_ERROR_GPU_IS_LOST;
    for (; now < fault.until_ns; now = monotonic_ns()) {
      const uint64_t left_ns = fault.until_ns - now;
      const timespec rest{static_cast<time_t>(left_ns / 1'000'000'000), static_cast<long>(left_ns % 1'000'000'000)};
      nanosleep(&rest, nullptr);
    }
  }
  return NVML_SUCCESS;
}

}  // namespace powerccl::emulator
