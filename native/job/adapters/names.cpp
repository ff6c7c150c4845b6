// SPDX-License-Identifier: Apache-2.0
// Compiled into each library of ours that is preloaded, never shared between them: each has its own symbol table.
#include "adapters/names.h"

#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "adapters/elf_image.h"

// By the linker: where this library begins. _DYNAMIC, its dynamic section, is declared in <link.h>.
extern "C" const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
// glibc's loader has it. Elsewhere the program's dynamic section names the list of objects.
#pragma weak _r_debug

// NOLINTBEGIN(performance-no-int-to-ptr): what an object says of itself are addresses as numbers
namespace powerccl::names {
namespace {

// The function that every object's _init refers to weakly, so that the loader looks it up for each object.
constexpr const char* kLookedUp = "__gmon_start__";
constexpr const char* kHide = "powerccl_hide_names";

// One function of ours that others may define.
struct Name {
  ElfW(Sym) * symbol;
  const char* text;
  uint32_t hash;
  ElfW(Addr) value;  // of the symbol while it is found
  bool defined;      // by an object behind this library
};
// The MPI library exports some 300.
constexpr uint32_t kMost = 512;
Name g_names[kMost];
uint32_t g_count = 0;
Name g_looked_up = {};  // of kLookedUp, which is never defined by others
bool g_began = false;
std::atomic<bool> g_busy{false};
// The objects that were there at the last look.
uint32_t g_objects = 0;
uint64_t g_fingerprint = 0;

uintptr_t own_base() {
  return reinterpret_cast<uintptr_t>(&__ehdr_start);
}

const link_map* first_object() {
  if (&_r_debug != nullptr && _r_debug.r_map != nullptr) return _r_debug.r_map;
  const auto* header = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  const unsigned long count = getauxval(AT_PHNUM);
  uintptr_t base = 0, dynamic = 0;
  for (unsigned long i = 0; header != nullptr && i < count; ++i) {
    if (header[i].p_type == PT_PHDR) base = reinterpret_cast<uintptr_t>(header) - header[i].p_vaddr;
    if (header[i].p_type == PT_DYNAMIC) dynamic = header[i].p_vaddr;
  }
  if (dynamic == 0) return nullptr;
  for (auto* each = reinterpret_cast<const ElfW(Dyn)*>(base + dynamic); each->d_tag != DT_NULL; ++each) {
    if (each->d_tag != DT_DEBUG || each->d_un.d_ptr == 0) continue;
    return reinterpret_cast<const r_debug*>(each->d_un.d_ptr)->r_map;
  }
  return nullptr;
}

bool is_own(const link_map* object) {
  return object->l_ld == _DYNAMIC;
}

// Where an object's program headers are: in its first page, or, of the program itself, where the kernel says.
struct Headers {
  const ElfW(Phdr) * first = nullptr;
  uint32_t count = 0;
};
Headers headers_of(const link_map* object) {
  if (object == first_object()) {
    return {reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR)), static_cast<uint32_t>(getauxval(AT_PHNUM))};
  }
  const uintptr_t base = object->l_addr;
  unsigned char resident = 0;
  // A page that is not mapped has no answer.
  if (base == 0 || syscall(SYS_mincore, base, 1, &resident) != 0) return {};
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  for (int i = 0; i < SELFMAG; ++i) {
    if (header->e_ident[i] != static_cast<unsigned char>(ELFMAG[i])) return {};
  }
  return {reinterpret_cast<const ElfW(Phdr)*>(base + header->e_phoff), header->e_phnum};
}

uintptr_t page_bytes() {
  static const uintptr_t bytes = getauxval(AT_PAGESZ);
  return bytes;
}

// Not by libc's function: where a sanitizer is linked into the program, that is the sanitizer's, which has not begun
// yet.
bool protect(uintptr_t from, uintptr_t to, int protection) {
  from &= ~(page_bytes() - 1);
  return syscall(SYS_mprotect, from, to - from, protection) == 0;
}

// Stores `value` at `at`, which may be in the part of the object that the loader has made read-only.
void store(const Headers& headers, uintptr_t base, uintptr_t at, uintptr_t value) {
  bool writable = false, read_only = false;
  const uintptr_t page = at & ~(page_bytes() - 1);
  for (uint32_t i = 0; i < headers.count; ++i) {
    const ElfW(Phdr) & segment = headers.first[i];
    const uintptr_t from = base + segment.p_vaddr, to = from + segment.p_memsz;
    if (segment.p_type == PT_LOAD && at >= from && at < to) writable = (segment.p_flags & PF_W) != 0;
    if (segment.p_type == PT_GNU_RELRO && page >= (from & ~(page_bytes() - 1)) && page < (to & ~(page_bytes() - 1))) {
      read_only = true;
    }
  }
  if (!writable || (read_only && !protect(page, page + page_bytes(), PROT_READ | PROT_WRITE))) return;
  *reinterpret_cast<volatile uintptr_t*>(at) = value;
  if (read_only) protect(page, page + page_bytes(), PROT_READ);
}

#if defined(__x86_64__)
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT, kJumpSlot = R_X86_64_JUMP_SLOT, kAddress = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint32_t kGlobalData = R_AARCH64_GLOB_DAT, kJumpSlot = R_AARCH64_JUMP_SLOT, kAddress = R_AARCH64_ABS64;
#endif

const Name* hidden_name(const char* text) {
  if (*text != 'M' && *text != 'P' && *text != 'n' && *text != 'c' && *text != '_' && *text != 'u') return nullptr;
  const uint32_t hash = gnu_hash_of(text);
  if (g_looked_up.hash == hash && same_text(text, kLookedUp)) return &g_looked_up;
  for (uint32_t i = 0; i < g_count; ++i) {
    if (g_names[i].hash == hash && !g_names[i].defined && same_text(g_names[i].text, text)) return &g_names[i];
  }
  return nullptr;
}

// Unbinds references that the loader bound to names hidden now. A weak one becomes null, as without this library. Any
// other one ends the process, because without this library the loader would not have started it.
void unbind(const link_map* object, const char* program) {
  const ElfImage image(object->l_addr, object->l_ld);
  if (!image.is_readable()) return;
  auto hidden = [&](uint32_t index) {
    return image.symbols[index].st_shndx == SHN_UNDEF ? hidden_name(image.name_of(image.symbols[index])) : nullptr;
  };
  const uint32_t end = image.end_of_undefined();
  bool any = end == 0;
  for (uint32_t i = 1; i < end && !any; ++i) any = hidden(i) != nullptr;
  if (!any) return;
  const Headers headers = headers_of(object);
  for (int part = 0; part < 2; ++part) {
    for (size_t i = 0; image.relocations[part] != nullptr && i < image.relocation_count[part]; ++i) {
      const ElfW(Rela) & relocation = image.relocations[part][i];
      const uint32_t type = ELF64_R_TYPE(relocation.r_info), symbol = ELF64_R_SYM(relocation.r_info);
      if ((type != kGlobalData && type != kJumpSlot && type != kAddress) || symbol == 0) continue;
      const Name* name = hidden(symbol);
      if (name == nullptr) continue;
      const uintptr_t addend = type == kAddress ? static_cast<uintptr_t>(relocation.r_addend) : 0;
      const uintptr_t at = image.base + relocation.r_offset;
      const uintptr_t bound = *reinterpret_cast<const uintptr_t*>(at);
      // A call that is not bound yet leads to the loader, which looks the name up again.
      if (bound != own_base() + name->value + addend) continue;
      if (ELF64_ST_BIND(image.symbols[symbol].st_info) == STB_WEAK) {
        store(headers, image.base, at, addend);
      } else if (program != nullptr) {
        say_undefined(program, object->l_name, name->text);
      }
    }
  }
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
uint64_t mixed(uint64_t hash, const link_map* object) {
  hash = mixed(hash, reinterpret_cast<uint64_t>(object->l_ld));
  return mixed(hash, reinterpret_cast<uint64_t>(object->l_name));
}

// Finds out which names objects behind this library define: those before it are found first anyway. Only objects that
// were not there at the last look are looked into, as long as none has gone. The loader appends to its list, and holds
// its lock while this library is asked.
void look_at_objects() {
  const link_map* object = first_object();
  uint32_t objects = 0;
  uint64_t fingerprint = 0;
  bool behind = false;
  for (; object != nullptr && objects < g_objects; object = object->l_next, ++objects) {
    fingerprint = mixed(fingerprint, object);
    behind = behind || is_own(object);
  }
  if (objects != g_objects || fingerprint != g_fingerprint) {
    objects_were_unloaded();
    for (uint32_t i = 0; i < g_count; ++i) g_names[i].defined = false;
    object = first_object();
    objects = 0;
    fingerprint = 0;
    behind = false;
  }
  for (; object != nullptr; object = object->l_next, ++objects) {
    fingerprint = mixed(fingerprint, object);
    if (!behind || is_own(object)) {
      behind = behind || is_own(object);
      continue;
    }
    const ElfImage image(object->l_addr, object->l_ld);
    for (uint32_t i = 0; i < g_count; ++i) {
      Name& name = g_names[i];
      if (!name.defined && image.find(name.text, name.hash) != nullptr) name.defined = true;
    }
  }
  g_objects = objects;
  g_fingerprint = fingerprint;
}

uintptr_t begin_of_symbols() {
  return reinterpret_cast<uintptr_t>(ElfImage(own_base(), _DYNAMIC).symbols);
}
uintptr_t end_of_symbols() {
  uintptr_t end = 0;
  for (uint32_t i = 0; i < g_count; ++i) {
    const uintptr_t after = reinterpret_cast<uintptr_t>(g_names[i].symbol + 1);
    if (after > end) end = after;
  }
  const uintptr_t after = reinterpret_cast<uintptr_t>(g_looked_up.symbol + 1);
  return after > end ? after : end;
}

// A symbol with the value 0 is not found: the loader goes on to the next object. Other threads may be reading.
bool apply() {
  bool changes = false;
  for (uint32_t i = 0; i < g_count; ++i) {
    changes = changes || g_names[i].symbol->st_value != (g_names[i].defined ? g_names[i].value : 0);
  }
  if (!changes) return true;
  if (!protect(begin_of_symbols(), end_of_symbols(), PROT_READ | PROT_WRITE)) return false;
  for (uint32_t i = 0; i < g_count; ++i) {
    const Name& name = g_names[i];
    __atomic_store_n(&name.symbol->st_value, name.defined ? name.value : 0, __ATOMIC_RELEASE);
  }
  protect(begin_of_symbols(), end_of_symbols(), PROT_READ);
  return true;
}

// What the loader calls instead of binding to kLookedUp: new objects are there, and not yet bound. Answers what would
// have been found without this library, which is at most another library of ours.
void* loader_looks_up() {
  if (!g_busy.exchange(true, std::memory_order_acquire)) {
    look_at_objects();
    apply();
    g_busy.store(false, std::memory_order_release);
  }
  bool behind = false;
  for (const link_map* object = first_object(); object != nullptr; object = object->l_next) {
    if (behind) {
      const ElfImage image(object->l_addr, object->l_ld);
      const ElfW(Sym)* symbol = image.find(kLookedUp);
      if (symbol != nullptr && ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC) {
        return reinterpret_cast<void* (*)()>(image.address_of(*symbol))();
      }
    }
    behind = behind || is_own(object);
  }
  return nullptr;
}

// From now on the loader calls a function for it (an indirect function). It cannot be one in the file: glibc complains
// where a library that is loaded before refers to one.
bool hook_lookups() {
  if (!protect(begin_of_symbols(), end_of_symbols(), PROT_READ | PROT_WRITE)) return false;
  __atomic_store_n(&g_looked_up.symbol->st_value, reinterpret_cast<uintptr_t>(loader_looks_up) - own_base(),
                   __ATOMIC_RELEASE);
  g_looked_up.symbol->st_info = ELF64_ST_INFO(STB_GLOBAL, STT_GNU_IFUNC);
  protect(begin_of_symbols(), end_of_symbols(), PROT_READ);
  return true;
}

// Whether the symbol table has read-only memory without code: memory with code cannot be made writable.
bool symbols_are_data() {
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(own_base() + __ehdr_start.e_phoff);
  const uintptr_t at = begin_of_symbols() - own_base();
  for (uint32_t i = 0; i < __ehdr_start.e_phnum; ++i) {
    if (headers[i].p_type == PT_LOAD && at - headers[i].p_vaddr < headers[i].p_memsz) {
      return headers[i].p_flags == PF_R;
    }
  }
  return false;
}

}  // namespace

void* definition_in_list(const char* name) {
  bool behind = false;
  for (const link_map* object = first_object(); object != nullptr; object = object->l_next) {
    if (behind) {
      const ElfImage image(object->l_addr, object->l_ld);
      const ElfW(Sym)* symbol = image.find(name);
      if (symbol != nullptr && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC) return image.address_of(*symbol);
    }
    behind = behind || is_own(object);
  }
  return nullptr;
}

}  // namespace powerccl::names

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))

// What objects that are loaded with the program bind to. It does nothing, as if it were not there.
POWERCCL_EXPORT void __gmon_start__() {}

// Hides what no other object defines. The first of our libraries to initialise calls it for all of them, because glibc
// lets one object of a process initialise before all others. `program`: what it was started as; null: not known.
POWERCCL_EXPORT void powerccl_hide_names(const char* program) {
  using namespace powerccl::names;
  if (g_began) return;
  g_began = true;
  if (first_object() == nullptr || !symbols_are_data()) return;
  const ElfImage image(own_base(), _DYNAMIC);
  image.each_defined([&](uint32_t index, const ElfW(Sym) & symbol) {
    const char* text = image.name_of(symbol);
    auto* own = const_cast<ElfW(Sym)*>(&image.symbols[index]);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || same_text(text, kHide)) return;
    if (same_text(text, kLookedUp)) {
      g_looked_up = {own, text, gnu_hash_of(text), symbol.st_value, false};
    } else if (g_count < kMost) {
      g_names[g_count++] = {own, text, gnu_hash_of(text), symbol.st_value, false};
    }
  });
  if (g_looked_up.symbol == nullptr || g_count == kMost) return;
  look_at_objects();
  if (!hook_lookups() || !apply()) return;
  // The loader binds the last object first.
  const link_map* last = first_object();
  while (last->l_next != nullptr) last = last->l_next;
  for (; last != nullptr; last = last->l_prev) {
    if (!is_own(last)) unbind(last, program);
  }
}

namespace {

__attribute__((constructor)) void library_begins(int, char** words, char**) {
  using namespace powerccl::names;
  // Only glibc gives constructors what it gives main(). With others a program whose reference is unbound has not
  // started.
  const char* program = &_r_debug != nullptr && words != nullptr ? words[0] : nullptr;
  for (const link_map* object = first_object(); object != nullptr; object = object->l_next) {
    const ElfImage image(object->l_addr, object->l_ld);
    const ElfW(Sym)* symbol = image.find(kHide);
    if (symbol != nullptr) reinterpret_cast<void (*)(const char*)>(image.address_of(*symbol))(program);
  }
}

}  // namespace
// NOLINTEND(performance-no-int-to-ptr)
