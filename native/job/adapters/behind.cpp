// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "adapters/elf_image.h"
#include "adapters/names.h"

// NOLINTBEGIN(performance-no-int-to-ptr): what an object says of itself are addresses as numbers
namespace powerccl::names {

namespace {

struct Search {
  const char* name;
  uint32_t hash;
  bool behind;           // this library has been passed
  void* definitions[2];  // the first definition before this library, and behind it
  bool is_indirect[2];
};

int look_into(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (dynamic == _DYNAMIC) {
      search->behind = true;
      return 0;
    }
    const ElfImage image(info->dlpi_addr, dynamic);
    const ElfW(Sym)* symbol = image.find(search->name, search->hash);
    if (symbol == nullptr || search->definitions[search->behind] != nullptr) return 0;
    search->definitions[search->behind] = image.address_of(*symbol);
    search->is_indirect[search->behind] = ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC;
    return search->behind ? 1 : 0;
  }
  return 0;
}

void* search_for(const char* name, bool from_first) {
  Search search{name, gnu_hash_of(name), false, {}, {}};
  dl_iterate_phdr(look_into, &search);
  const bool which = from_first ? search.definitions[0] == nullptr : search.definitions[1] != nullptr;
  void* definition = search.definitions[which];
  return search.is_indirect[which] ? reinterpret_cast<void* (*)()>(definition)() : definition;
}

}  // namespace

void* definition_behind(const char* name) {
  return search_for(name, false);
}

void* first_definition(const char* name) {
  return search_for(name, true);
}

void say_undefined(const char* program, const char* object, const char* name) {
  const char* where = object != nullptr && object[0] != '\0' ? object : program;
  dprintf(STDERR_FILENO, "%s: symbol lookup error: %s: undefined symbol: %s\n", program, where, name);
  _exit(127);
}

void end_as_undefined(const char* name, const void* caller) {
  Dl_info where{};
  const char* object = dladdr(caller, &where) != 0 ? where.dli_fname : nullptr;
  say_undefined(program_invocation_name, object, name);
}

}  // namespace powerccl::names
// NOLINTEND(performance-no-int-to-ptr)
