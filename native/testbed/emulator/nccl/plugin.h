// SPDX-License-Identifier: Apache-2.0
// Finding, opening and talking to a profiler plugin, as NCCL 2.28.9 does, over its ABI v4 to v7.
#pragma once
#include <atomic>
#include <mutex>

#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

// One place for a plugin: the first communicator loads what it asks for, the last one unloads it.
struct PluginKind {
  const char* name;                    // of the library: libnccl-<name>.so
  const char* variable;                // NCCL's, which names the library
  const char* abi_variable;            // ours, which chooses an interface's version
  const char* symbol;                  // of the function table, without its version
  int oldest, newest;                  // versions that the emulator speaks
  int (*newest_of)(int nccl_version);  // the newest that a version of NCCL speaks; 0: none of those
  const char* loaded;                  // what NCCL logs, with the plugin's name and the version
  const char* closing;                 // the same, with the name
};

class PluginSlot {
 public:
  constexpr explicit PluginSlot(const PluginKind& kind) noexcept : kind_(kind) {}

  // False: there is no plugin (none asked for, not found, or no version in common). That is final, as in NCCL.
  bool acquire();
  void release();

  // The function table; null: not loaded. It does not change between acquire and release.
  const void* table() const { return table_.load(std::memory_order_acquire); }
  int version() const { return version_.load(); }

 private:
  void load();
  int newest_spoken() const;

  const PluginKind& kind_;
  std::mutex mutex_;
  bool failed_ = false;
  int references_ = 0;
  void* library_ = nullptr;
  std::atomic<const void*> table_{nullptr};
  std::atomic<int> version_{0};
};

// Finding, opening and asking a tuner plugin, as NCCL 2.28.9 does, over its ABI v4 to v6.
// The plugin is loaded by the first communicator and unloaded behind the last one. A failed load is final, as in NCCL.
// What its functions return is handed on: NCCL fails the call that it was asked for.
class TunerPlugin {
 public:
  // Loads on first use. False: there is no plugin (none asked for, not found, or no ABI in common).
  static bool acquire();
  static void release();

  static ncclResult_t init(void** context, uint64_t comm_id, int ranks, TunerConstants* constants);
  static ncclResult_t get_coll_info(void* context, int function, size_t bytes, int pipelined_operations,
                                    CostTable& costs, bool captured, int* channels);
  // The chunk that the plugin would have; the model of time does not know chunks.
  static ncclResult_t get_chunk_size(void* context, int function, size_t bytes, int algorithm, int protocol,
                                     int channels, size_t* chunk_bytes);
  static void finalize(void* context);
};

// The version that is emulated: POWERCCL_EMULATOR_NCCL_VERSION, else kNcclVersion.
int nccl_version();

// The plugin is loaded by the first communicator and unloaded behind the last one. A failed load is final, as in NCCL.
class ProfilerPlugin {
 public:
  // Loads on first use. False: there is no plugin (none asked for, not found, or no ABI in common).
  static bool acquire();
  static void release();

  static bool loaded();
  static int abi_version();
  // The mask of events that the plugin wants now; plugins may change it at any time.
  static uint64_t event_mask();

  static int init(void** context, uint64_t comm_id, const char* comm_name, int ranks, int rank);
  static void start(void* context, void** handle, const EventDescriptor& descriptor);
  static void stop(void* handle);
  static void record(void* handle, int state, uint64_t gpu_time_ns);
  static void finalize(void* context);
};

}  // namespace powerccl::emulated_nccl
