// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "abi/host_clock.h"
#include "base/basics.h"

namespace powerccl {
namespace {

int by_system_call(clockid_t clock, timespec* now) {
  return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
constexpr char kName[] = "__vdso_clock_gettime";
#else
constexpr char kName[] = "__kernel_clock_gettime";
#endif

// A symbol table tells its length nowhere but in its hash tables, of which newer kernels leave out the older kind.
uint32_t symbols_by_gnu_hash(const uint32_t* table) {
  const uint32_t buckets = table[0], first = table[1], bloom = table[2];
  const uint32_t* bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first;
  const uint32_t* chain = bucket + buckets;
  while ((chain[last - first] & 1u) == 0) ++last;
  return last + 1;
}

// NOLINTBEGIN(performance-no-int-to-ptr): the kernel gives addresses as numbers
ReadClock find_in_vdso() {
  const unsigned long image = getauxval(AT_SYSINFO_EHDR);
  if (image == 0) return nullptr;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(image);
  const auto* segment = reinterpret_cast<const ElfW(Phdr)*>(image + header->e_phoff);
  const ElfW(Dyn)* entry = nullptr;
  unsigned long shift = 0;
  bool loaded = false;
  for (int i = 0; i < header->e_phnum; ++i, ++segment) {
    if (segment->p_type == PT_LOAD && !loaded) {
      shift = image + segment->p_offset - segment->p_vaddr;
      loaded = true;
    }
    if (segment->p_type == PT_DYNAMIC) entry = reinterpret_cast<const ElfW(Dyn)*>(image + segment->p_offset);
  }
  if (!loaded || entry == nullptr) return nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  uint32_t count = 0;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const unsigned long at = shift + entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
    if (entry->d_tag == DT_HASH) count = reinterpret_cast<const uint32_t*>(at)[1];
    if (entry->d_tag == DT_GNU_HASH && count == 0) count = symbols_by_gnu_hash(reinterpret_cast<const uint32_t*>(at));
  }
  if (symbols == nullptr || names == nullptr) return nullptr;
  for (uint32_t i = 0; i < count; ++i) {
    if (symbols[i].st_shndx != SHN_UNDEF && strcmp(names + symbols[i].st_name, kName) == 0) {
      return reinterpret_cast<ReadClock>(shift + symbols[i].st_value);
    }
  }
  return nullptr;
}
// NOLINTEND(performance-no-int-to-ptr)
#else
ReadClock find_in_vdso() {
  return nullptr;
}
#endif

int find_first(clockid_t clock, timespec* now) {
  ReadClock reader = find_in_vdso();
  if (reader == nullptr || reader(CLOCK_MONOTONIC, now) != 0) reader = by_system_call;
  g_time_shift_ns.store(static_cast<uint64_t>(read_time_shift_ns("monotonic")), std::memory_order_relaxed);
  g_read_clock.store(reader, std::memory_order_release);
  return reader(clock, now);
}

}  // namespace

constinit std::atomic<ReadClock> g_read_clock{find_first};
constinit std::atomic<uint64_t> g_time_shift_ns{0};

}  // namespace powerccl
