// SPDX-License-Identifier: Apache-2.0
#include "emulator/nvml/session.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
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

namespace {

constexpr uint64_t kLivenessNs = 100'000'000;  // a dead server is noticed so late; a check costs a system call

struct Library {
  std::mutex mutex;
  std::unique_ptr<Connection> connection;
  int references = 0;
  std::atomic<uint64_t> checked_ns{0};
  EnergyCounters energy;
};

Library& library() {
  static Library* instance = new Library;  // outlives other threads' last calls
  return *instance;
}

bool may_set_clocks(const BoardPage& board) {
  const char* setting = getenv("POWERCCL_EMULATOR_MAY_SET_CLOCKS");
  return board.may_set_clocks != 0 && (setting == nullptr || strcmp(setting, "0") != 0);
}

}  // namespace

nvmlReturn_t begin_session() {
  if (const nvmlReturn_t failure = injected("init"); failure != NVML_SUCCESS) return failure;
  gpu_fault(UINT32_MAX);  // their times begin here
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.connection == nullptr) lib.connection = Connection::open(Role::kNvml, "libnvidia-ml");
  if (lib.connection == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  ++lib.references;
  return NVML_SUCCESS;
}

nvmlReturn_t end_session() {
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.references == 0) return NVML_ERROR_UNINITIALIZED;
  --lib.references;  // the connection stays: another thread may be in a call, and the next nvmlInit finds it
  return NVML_SUCCESS;
}

Access access() {
  Library& lib = library();
  const std::lock_guard lock(lib.mutex);
  if (lib.references == 0 || lib.connection == nullptr) return {NVML_ERROR_UNINITIALIZED};
  if (lib.connection->pid() != getpid()) {  // a forked child needs a socket of its own
    auto own = Connection::open(Role::kNvml, "libnvidia-ml");
    if (own == nullptr) return {NVML_ERROR_UNKNOWN};
    [[maybe_unused]] const Connection* parents =
        lib.connection.release();  // the parent's: shared with it, so neither closed nor used
    lib.connection = std::move(own);
  }
  if (lib.connection->lost()) return {NVML_ERROR_UNKNOWN};
  const uint64_t now = monotonic_ns();
  if (now - lib.checked_ns.load() > kLivenessNs) {
    if (!lib.connection->alive()) return {NVML_ERROR_UNKNOWN};
    lib.checked_ns.store(now);
  }
  return {NVML_SUCCESS, lib.connection.get()};
}

Access access(nvmlDevice_t device) {
  Access accessed = access();
  if (accessed.result != NVML_SUCCESS) return accessed;
  const auto number = reinterpret_cast<uintptr_t>(device);
  if (number == 0 || number > accessed.connection->board().gpus) return {NVML_ERROR_INVALID_ARGUMENT};
  accessed.gpu = static_cast<uint32_t>(number - 1);
  accessed.result = gpu_fault(accessed.gpu);
  return accessed;
}

nvmlReturn_t read_now(nvmlDevice_t device, const char* call, const void* target, Readings* readings,
                      const BoardPage** board) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (target == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (const nvmlReturn_t failure = injected(call); failure != NVML_SUCCESS) return failure;
  *board = &accessed.connection->board();
  *readings = read_gpu(**board, accessed.gpu, monotonic_ns());
  readings->energy_mj = library().energy.at_least(accessed.gpu, readings->energy_mj);
  return NVML_SUCCESS;
}

nvmlReturn_t set_clocks(nvmlDevice_t device, const char* call, unsigned min_mhz, unsigned max_mhz) {
  const Access accessed = access(device);
  if (accessed.result != NVML_SUCCESS) return accessed.result;
  if (!may_set_clocks(accessed.connection->board())) return NVML_ERROR_NO_PERMISSION;
  dawdle(call);
  SetLockedClocks message{};
  message.header.type = static_cast<uint32_t>(Message::kSetLockedClocks);
  message.gpu = accessed.gpu;
  message.min_mhz = min_mhz;
  message.max_mhz = max_mhz;
  message.inject = injected(call);
  Reply reply;
  if (!accessed.connection->request(&message.header, sizeof message, reply)) return NVML_ERROR_UNKNOWN;
  return static_cast<nvmlReturn_t>(reply.error);
}

}  // namespace powerccl::emulator
