// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "doors/elf_image.h"
#include "doors/names.h"

namespace powerccl::names {

void* definition_behind(const char* name) {
  struct Wanted {
    const char* name;
    uint32_t hash;
    void* found;
    bool indirect;
  } wanted{name, gnu_hash_of(name), nullptr, false};
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto* its = static_cast<Wanted*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address
      const auto* dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
      if (dynamic == _DYNAMIC) continue;
      const ElfImage image(info->dlpi_addr, dynamic);
      const ElfW(Sym)* symbol = image.find(its->name, its->hash);
      if (symbol == nullptr) continue;
      its->found = image.address_of(*symbol);
      its->indirect = ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC;
      return 1;
    }
    return 0;
  };
  dl_iterate_phdr(look, &wanted);
  return wanted.indirect ? reinterpret_cast<void* (*)()>(wanted.found)() : wanted.found;
}

void end_as_undefined(const char* name, const void* caller) {
  Dl_info where{};
  const char* object = program_invocation_name;
  if (dladdr(caller, &where) != 0 && where.dli_fname != nullptr && where.dli_fname[0] != '\0') object = where.dli_fname;
  dprintf(STDERR_FILENO, "%s: symbol lookup error: %s: undefined symbol: %s\n", program_invocation_name, object, name);
  _exit(127);
}

}  // namespace powerccl::names
