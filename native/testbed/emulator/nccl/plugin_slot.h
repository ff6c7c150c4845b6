// SPDX-License-Identifier: Apache-2.0
// One place for a plugin: the first communicator loads what it asks for, the last one unloads it.
#pragma once
#include <atomic>
#include <mutex>

namespace powerccl::emulated_nccl {

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

}  // namespace powerccl::emulated_nccl
