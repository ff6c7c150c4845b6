// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/chained_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

namespace powerccl::nccl {
namespace {

constexpr size_t kName = 512;  // bytes of a file's name; a longer one is cut, and not found

// NCCL takes any leading part of that word for the program itself.
bool in_program(const char* name) {
  return name[0] != '\0' && strncasecmp(name, "STATIC_PLUGIN", strlen(name)) == 0;
}

bool is_file_name(const char* name) {
  const size_t length = strlen(name);
  const bool library = strncmp(name, "lib", 3) == 0 && length > 3 && strcmp(name + length - 3, ".so") == 0;
  return library || strchr(name, '/') != nullptr;
}

// The name unchanged, then as a short one.
void* open_named(const char* kind, const char* value, int flags) {
  if (in_program(value)) return dlopen(nullptr, flags);
  char name[kName];
  if (value[0] == '\0') {
    snprintf(name, sizeof(name), "libnccl-%s.so", kind);
    return dlopen(name, flags);
  }
  void* library = dlopen(value, flags);
  if (library != nullptr || is_file_name(value)) return library;
  snprintf(name, sizeof(name), "libnccl-%s-%s.so", kind, value);
  return dlopen(name, flags);
}

// Network plugins may bring a profiler or a tuner of their own, as that of AWS does.
void* open_network_plugin() {
  const char* value = getenv("NCCL_NET_PLUGIN");  // NOLINT(concurrency-mt-unsafe): NCCL reads it the same way
  return open_named("net", value == nullptr ? "" : value, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

}  // namespace

void* open_chained_plugin(const char* kind, const char* value, char* reason, size_t reason_size) {
  reason[0] = '\0';
  if (strcasecmp(value, "none") == 0) return nullptr;
  void* library = open_named(kind, value, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr && value[0] != '\0') {
    const char* error = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    const size_t length = strlen(value);
    const bool repeats =
        error != nullptr && strncmp(error, value, length) == 0 && strncmp(error + length, ": ", 2) == 0;
    snprintf(reason, reason_size, "%s",
             error == nullptr ? "it cannot be opened"
             : repeats        ? error + length + 2
                              : error);
  }
  return library != nullptr ? library : open_network_plugin();
}

const void* chained_table(void* plugin, const char* symbol) {
  const void* table = dlsym(plugin, symbol);
  if (table == nullptr) return nullptr;
  const char* name = nullptr;  // every table begins with it
  memcpy(&name, table, sizeof(name));
  return name != nullptr && strcmp(name, "PowerCCL") == 0 ? nullptr : table;
}

}  // namespace powerccl::nccl
