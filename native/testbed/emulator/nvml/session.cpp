// SPDX-License-Identifier: Apache-2.0
#include "emulator/nvml/session.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "emulator/nvml/injection.h"

namespace powerccl::emulator {
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
