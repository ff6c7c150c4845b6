// SPDX-License-Identifier: Apache-2.0
#include "emulator/nvml/injection.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "emulator/client/connection.h"

namespace powerccl::emulator {
namespace {

constexpr double kForEverS = 1e9;  // 30 years

// ---- POWERCCL_EMULATOR_NVML_FAIL="set_locked_clocks:after=3:code=15,power:after=0:code=3"

struct Failure {
  std::string call;
  long after = 0;
  int code = NVML_ERROR_UNKNOWN;
  std::atomic<long> calls{0};
};

std::vector<std::unique_ptr<Failure>> parse_failures() {
  std::vector<std::unique_ptr<Failure>> failures;
  const char* setting = getenv("POWERCCL_EMULATOR_NVML_FAIL");
  std::string text = setting != nullptr ? setting : "";
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string item = text.substr(0, comma);
    text.erase(0, comma + 1);
    auto failure = std::make_unique<Failure>();
    failure->call = item.substr(0, item.find(':'));
    const size_t after = item.find(":after="), code = item.find(":code=");
    if (after != std::string::npos) failure->after = std::strtol(item.c_str() + after + 7, nullptr, 10);
    if (code != std::string::npos) failure->code = static_cast<int>(std::strtol(item.c_str() + code + 6, nullptr, 10));
    failures.push_back(std::move(failure));
  }
  return failures;
}

}  // namespace

nvmlReturn_t injected(const char* call) {
  static const auto* failures = new std::vector<std::unique_ptr<Failure>>(parse_failures());
  for (const auto& failure : *failures)
    if (failure->call == call && failure->calls.fetch_add(1) >= failure->after)
      return static_cast<nvmlReturn_t>(failure->code);
  return NVML_SUCCESS;
}

namespace {

// ---- POWERCCL_EMULATOR_NVML_SLOW="set_locked_clocks:ms=20:every=7"

struct Slowness {
  std::string call;
  long ms = 0, every = 1;
  std::atomic<long> calls{0};
};

std::vector<std::unique_ptr<Slowness>> parse_slowness() {
  std::vector<std::unique_ptr<Slowness>> slow;
  const char* setting = getenv("POWERCCL_EMULATOR_NVML_SLOW");
  std::string text = setting != nullptr ? setting : "";
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string item = text.substr(0, comma);
    text.erase(0, comma + 1);
    auto slowness = std::make_unique<Slowness>();
    slowness->call = item.substr(0, item.find(':'));
    const size_t ms = item.find(":ms="), every = item.find(":every=");
    if (ms != std::string::npos) slowness->ms = std::strtol(item.c_str() + ms + 4, nullptr, 10);
    if (every != std::string::npos) slowness->every = std::strtol(item.c_str() + every + 7, nullptr, 10);
    slowness->every = std::max(slowness->every, 1L);
    slow.push_back(std::move(slowness));
  }
  return slow;
}

}  // namespace

void dawdle(const char* call) {
  static const auto* slow = new std::vector<std::unique_ptr<Slowness>>(parse_slowness());
  for (const auto& slowness : *slow) {
    if (slowness->call != call || (slowness->calls.fetch_add(1) + 1) % slowness->every != 0) continue;
    const timespec takes{slowness->ms / 1000, slowness->ms % 1000 * 1'000'000};
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
  const char* setting = getenv("POWERCCL_EMULATOR_NVML_GPU");
  std::string text = setting != nullptr ? setting : "";
  const uint64_t now = monotonic_ns();
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string item = text.substr(0, comma);
    text.erase(0, comma + 1);
    const auto seconds_ns = [&](const char* key, double otherwise) {
      const size_t at = item.find(key);
      return static_cast<uint64_t>(
          1e9 * (at == std::string::npos ? otherwise : std::strtod(item.c_str() + at + strlen(key), nullptr)));
    };
    const size_t in = item.find(":in=");
    if (in != std::string::npos && item.substr(in + 4) != program_invocation_short_name) continue;
    GpuFault fault;
    fault.gpu = static_cast<uint32_t>(std::strtoul(item.c_str(), nullptr, 10));
    fault.hangs = item.find(":hang") != std::string::npos;
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
