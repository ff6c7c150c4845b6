// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/plugin_open.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstring>
#include <string>

#include "emulator/nccl/log.h"

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

}  // namespace

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

}  // namespace powerccl::emulated_nccl
