// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/plugin_slot.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/nccl/log.h"
#include "emulator/nccl/plugin.h"

namespace powerccl::emulated_nccl {
namespace {

bool starts_with(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}
bool ends_with(const std::string& text, const char* suffix) {
  const size_t length = strlen(suffix);
  return text.size() >= length && text.compare(text.size() - length, length, suffix) == 0;
}

void* open_one(const char* kind, const std::string& name) {
  // NCCL compares the length of what was given, so that any leading part of the word counts too.
  const bool in_program = strncasecmp(name.c_str(), "STATIC_PLUGIN", name.size()) == 0;
  void* handle = dlopen(in_program ? nullptr : name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) info("%s/Plugin: %s", kind, dlerror());
  return handle;
}

// The value unchanged, then libnccl-<kind>-<value>.so if it is neither a path nor a library's name; empty:
// libnccl-<kind>.so. Null: not found.
void* open_plugin(const char* kind, const char* value) {
  const std::string asked = value ? value : "";
  const std::string prefix = std::string("libnccl-") + kind;
  if (asked.empty()) return open_one(kind, prefix + ".so");
  if (void* handle = open_one(kind, asked)) return handle;
  const bool path = asked.find('/') != std::string::npos;
  const bool library_name = starts_with(asked, "lib") && ends_with(asked, ".so");
  if (path || library_name) return nullptr;
  return open_one(kind, prefix + "-" + asked + ".so");
}

// Each version of a function table begins with the plugin's name.
const char* name_of(const void* table) {
  return *static_cast<const char* const*>(table);
}

}  // namespace

int PluginSlot::newest_spoken() const {
  const char* value = getenv(kind_.abi_variable);
  const int own = kind_.newest_of(nccl_version());
  if (!value || !*value) return own;
  const auto asked = static_cast<int>(strtol(value, nullptr, 10));
  if (asked >= kind_.oldest && asked <= kind_.newest) return asked;
  error("%s=%s is not a %s ABI. hint: use %d to %d; going on with %d", kind_.abi_variable, value, kind_.name,
        kind_.oldest, kind_.newest, own);
  return own;
}

void PluginSlot::load() {
  failed_ = true;
  const char* value = getenv(kind_.variable);
  if (value) {
    info("%s set by environment to %s", kind_.variable, value);
    if (strcasecmp(value, "none") == 0) return;
  }
  const int newest = newest_spoken();
  if (newest == 0) return;
  library_ = open_plugin(kind_.name, value);
  if (!library_) return;
  for (int version = newest; version >= kind_.oldest; --version) {
    const std::string symbol = kind_.symbol + std::to_string(version);
    if (const void* exported = dlsym(library_, symbol.c_str())) {
      version_.store(version);
      table_.store(exported, std::memory_order_release);
      failed_ = false;
      info(kind_.loaded, name_of(exported), version);
      return;
    }
  }
  if (value) info("External %s plugin %s is unsupported", kind_.name, value);
  dlclose(library_);
  library_ = nullptr;
}

bool PluginSlot::acquire() {
  std::lock_guard lock(mutex_);
  if (!failed_ && !library_) load();
  if (failed_) return false;
  ++references_;
  return true;
}

void PluginSlot::release() {
  std::lock_guard lock(mutex_);
  if (failed_ || --references_ > 0) return;
  info(kind_.closing, name_of(table_.load()));
  table_.store(nullptr, std::memory_order_release);
  dlclose(library_);
  library_ = nullptr;
}

}  // namespace powerccl::emulated_nccl
