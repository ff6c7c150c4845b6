// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/api_communicators.h"

#include "adapters/nccl/live.h"
#include "adapters/nccl/marks.h"
#include "adapters/nccl/nvml_reader.h"
#include "adapters/nccl/originals.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

namespace powerccl::nccl {
namespace {

struct Known {
  uint64_t id = 0;
  std::atomic<Communicator*> communicator{nullptr};
  std::atomic<Communicator*> plugins{nullptr};  // the plugin's, or null
  std::atomic<bool> settled{false};             // brought up, or not recorded
  uint32_t splits = 0;
};
KeyTable<Known, 1024> g_known;

uint64_t mixed(uint64_t hash, uint64_t with) {
  hash = (hash ^ with) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

constexpr uint32_t kComing = 32;
struct Coming {
  void** slot[kComing];
  uint64_t id[kComing];
  uint32_t count;
};
constinit thread_local Coming t_coming = {};

using Ask = int (*)(void* comm, int* answer);
bool ask(const char* function, void* comm, int* answer) {
  auto* real = reinterpret_cast<Ask>(find_original(function, Library::kNccl));
  return real != nullptr && real(comm, answer) == kNcclSuccess;
}

void no_kernel_events(void*, bool) {}

// Under g_mutex.
void bring_up(void* comm, Known* known) {
  known->settled.store(true, std::memory_order_release);
  CommunicatorSeen seen;
  int device = -1;
  if (plugin_came()) return;
  if (!ask("ncclCommCount", comm, &seen.nranks) || !ask("ncclCommUserRank", comm, &seen.rank) ||
      !ask("ncclCommCuDevice", comm, &device)) {
    return;
  }
  seen.id = known->id;
  Runtime* active = open_runtime();
  set_api_came();
  Adapter adapter;
  library_text(adapter.library, sizeof(adapter.library), "preload");
  adapter.sees_calls = true;
  adapter.ask_kernel_events = no_kernel_events;
  adapter.call_behind = g_cuda.launch_host_func != nullptr ? call_behind : nullptr;
  adapter.open_reader = open_nvml_reader;
  known->communicator.store(active->communicator_up(seen, gpu_of_device(g_cuda, device), adapter),
                            std::memory_order_release);
}

bool is_ready(void* comm) {
  int state = kNcclSuccess;
  return !ask("ncclCommGetAsyncError", comm, &state) || state == kNcclSuccess;
}

}  // namespace

Communicator* communicator_of(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr) return nullptr;
  if (!known->settled.load(std::memory_order_acquire)) {
    pthread_mutex_lock(&g_mutex);
    if (!known->settled.load(std::memory_order_relaxed) && is_ready(comm)) bring_up(comm, known);
    pthread_mutex_unlock(&g_mutex);
  }
  return known->communicator.load(std::memory_order_acquire);
}

Communicator* plugins_communicator(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr || runtime() == nullptr) return nullptr;
  Communicator* settled = known->plugins.load(std::memory_order_acquire);
  if (settled != nullptr) return settled;
  int ranks = 0, rank = 0, device = -1;
  if (!ask("ncclCommCount", comm, &ranks) || !ask("ncclCommUserRank", comm, &rank) ||
      !ask("ncclCommCuDevice", comm, &device)) {
    return nullptr;
  }
  settled = runtime()->only_communicator(ranks, rank, gpu_of_device(g_cuda, device));
  if (settled != nullptr) known->plugins.store(settled, std::memory_order_release);
  return settled;
}

void plugins_communicator_is(void* comm, Communicator* communicator) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr || known->plugins.load(std::memory_order_relaxed) == communicator) return;
  known->plugins.store(communicator, std::memory_order_release);
}

void communicator_coming(void** slot, uint64_t id) {
  if (slot == nullptr || t_coming.count == kComing) return;
  t_coming.slot[t_coming.count] = slot;
  t_coming.id[t_coming.count++] = id;
}

void communicators_came(int result) {
  const uint32_t count = t_coming.count;
  t_coming.count = 0;
  if (result != kNcclSuccess && result != kNcclInProgress) return;
  for (uint32_t i = 0; i < count; ++i) {
    void* comm = *t_coming.slot[i];
    if (comm == nullptr) continue;
    bool added = false;
    Known* known = g_known.find_or_add(reinterpret_cast<uint64_t>(comm), &added);
    if (known == nullptr) continue;
    pthread_mutex_lock(&g_mutex);
    known->id = t_coming.id[i];
    known->splits = 0;
    known->communicator.store(nullptr, std::memory_order_relaxed);
    known->plugins.store(nullptr, std::memory_order_relaxed);
    known->settled.store(false, std::memory_order_relaxed);
    if (result == kNcclSuccess) bring_up(comm, known);
    pthread_mutex_unlock(&g_mutex);
  }
}

uint64_t id_of(const UniqueId& id) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char each : id.bytes) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return hash;
}

// All its ranks are in this process.
uint64_t id_of_all() {
  return mixed(monotonic_ns(), static_cast<uint64_t>(getpid()));
}

uint64_t id_of_split(void* parent, int color) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(parent));
  if (known == nullptr) return mixed(1, static_cast<uint64_t>(color));
  return mixed(mixed(known->id, ++known->splits), static_cast<uint64_t>(color));
}

uint64_t id_without(void* parent, const int* ranks, int count) {
  uint64_t left_out = 0;
  for (int i = 0; ranks != nullptr && i < count; ++i) left_out = mixed(left_out, static_cast<uint64_t>(ranks[i]));
  return id_of_split(parent, static_cast<int>(left_out >> 33));
}

void communicator_given_up(void* comm) {
  Runtime* active = runtime();
  if (active == nullptr) return;
  Communicator* communicator = communicator_of(comm);
  active->calls_given_up(communicator != nullptr ? communicator : plugins_communicator(comm));
}

Communicator* communicator_taken(void* comm) {
  Known* known = g_known.find(reinterpret_cast<uint64_t>(comm));
  if (known == nullptr) return nullptr;
  Communicator* communicator = known->communicator.exchange(nullptr, std::memory_order_acq_rel);
  g_known.remove(reinterpret_cast<uint64_t>(comm));
  return communicator;
}

void communicator_gone(Communicator* communicator) {
  if (communicator == nullptr) return;
  live().finish(communicator);
  marks().finish(communicator);
  runtime()->communicator_down(communicator);
}

}  // namespace powerccl::nccl
