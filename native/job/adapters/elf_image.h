// SPDX-License-Identifier: Apache-2.0
// A loaded ELF object: its symbols and relocations, read from memory. It calls nothing of libc, because it is used
// before other objects' constructors have run.
#pragma once
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

// NOLINTBEGIN(performance-no-int-to-ptr): what an object says of itself are addresses as numbers
namespace powerccl::names {

inline bool same_text(const char* one, const char* other) {
  while (*one != '\0' && *one == *other) ++one, ++other;
  return *one == *other;
}

inline uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

struct ElfImage {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;   // buckets, first hashed symbol, words and shift of the filter
  const uint32_t* sysv_hash = nullptr;  // buckets, symbols
  const uint16_t* versions = nullptr;
  const ElfW(Rela) * relocations[2] = {};  // of data, and of calls
  size_t relocation_count[2] = {};

  ElfImage(uintptr_t load_base, const ElfW(Dyn) * dynamic) : base(load_base) {
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
      switch (dynamic->d_tag) {
        case DT_SYMTAB:
          symbols = at<ElfW(Sym)>(dynamic);
          break;
        case DT_STRTAB:
          strings = at<char>(dynamic);
          break;
        case DT_GNU_HASH:
          gnu_hash = at<uint32_t>(dynamic);
          break;
        case DT_HASH:
          sysv_hash = at<uint32_t>(dynamic);
          break;
        case DT_VERSYM:
          versions = at<uint16_t>(dynamic);
          break;
        case DT_RELA:
          relocations[0] = at<ElfW(Rela)>(dynamic);
          break;
        case DT_RELASZ:
          relocation_count[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
          break;
        case DT_JMPREL:
          relocations[1] = at<ElfW(Rela)>(dynamic);
          break;
        case DT_PLTRELSZ:
          relocation_count[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
          break;
        default:
          break;
      }
    }
  }

  bool is_readable() const {
    return symbols != nullptr && strings != nullptr && (gnu_hash != nullptr || sysv_hash != nullptr);
  }
  const char* name_of(const ElfW(Sym) & symbol) const { return strings + symbol.st_name; }
  void* address_of(const ElfW(Sym) & symbol) const { return reinterpret_cast<void*>(base + symbol.st_value); }

  // The symbol by which others find `name` here; null: it is not defined here.
  const ElfW(Sym) * find(const char* name, uint32_t hash) const {
    if (symbols == nullptr || strings == nullptr) return nullptr;
    return gnu_hash != nullptr ? find_gnu(name, hash) : sysv_hash != nullptr ? find_sysv(name) : nullptr;
  }
  const ElfW(Sym) * find(const char* name) const { return find(name, gnu_hash_of(name)); }

  // Undefined symbols are those below this index; only DT_HASH mixes them with others. 0: not known, because nothing is
  // defined. So are most programs for AArch64, and GNU's linker writes 1 into them.
  uint32_t end_of_undefined() const {
    if (gnu_hash == nullptr) return sysv_hash[1];
    for (uint32_t bucket = 0; bucket < gnu_hash[0]; ++bucket) {
      if (buckets()[bucket] != 0) return gnu_hash[1];
    }
    return 0;
  }

  // Calls `look(index, symbol)` for each symbol that others can find.
  template <class Look>
  void each_defined(Look look) const {
    if (gnu_hash == nullptr) {
      for (uint32_t i = 1; sysv_hash != nullptr && i < sysv_hash[1]; ++i) {
        if (is_definition(i)) look(i, symbols[i]);
      }
      return;
    }
    for (uint32_t bucket = 0; bucket < gnu_hash[0]; ++bucket) {
      uint32_t index = buckets()[bucket];
      if (index == 0) continue;
      do {
        if (is_definition(index)) look(index, symbols[index]);
      } while ((chain(index++) & 1u) == 0);
    }
  }

 private:
  // glibc has added the base to addresses in most objects; the kernel's object and other libcs' have them as linked.
  template <class T>
  const T* at(const ElfW(Dyn) * dynamic) const {
    const uintptr_t address = dynamic->d_un.d_ptr;
    return reinterpret_cast<const T*>(address < base ? base + address : address);
  }
  const ElfW(Addr) * filter() const { return reinterpret_cast<const ElfW(Addr)*>(gnu_hash + 4); }
  const uint32_t* buckets() const { return reinterpret_cast<const uint32_t*>(filter() + gnu_hash[2]); }
  uint32_t chain(uint32_t index) const { return buckets()[gnu_hash[0] + index - gnu_hash[1]]; }

  bool is_definition(uint32_t index) const {
    const ElfW(Sym) & symbol = symbols[index];
    constexpr uint32_t kTypes =
        1u << STT_NOTYPE | 1u << STT_OBJECT | 1u << STT_FUNC | 1u << STT_COMMON | 1u << STT_GNU_IFUNC;
    const uint32_t bind = ELF64_ST_BIND(symbol.st_info);
    const bool old_version = versions != nullptr && (versions[index] & 0x8000u) != 0;
    return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
           (kTypes >> ELF64_ST_TYPE(symbol.st_info) & 1u) != 0 &&
           (bind == STB_GLOBAL || bind == STB_WEAK || bind == STB_GNU_UNIQUE) && !old_version;
  }

  const ElfW(Sym) * find_gnu(const char* name, uint32_t hash) const {
    constexpr uint32_t kBits = sizeof(ElfW(Addr)) * 8;
    if (gnu_hash[0] == 0 || gnu_hash[2] == 0) return nullptr;
    const ElfW(Addr) word = filter()[hash / kBits % gnu_hash[2]];
    if ((word >> (hash % kBits) & word >> ((hash >> gnu_hash[3]) % kBits) & 1u) == 0) return nullptr;
    uint32_t index = buckets()[hash % gnu_hash[0]];
    if (index == 0) return nullptr;
    for (;; ++index) {
      const uint32_t chained_hash = chain(index);
      if ((chained_hash | 1u) == (hash | 1u) && same_text(name_of(symbols[index]), name) && is_definition(index)) {
        return &symbols[index];
      }
      if ((chained_hash & 1u) != 0) return nullptr;
    }
  }
  const ElfW(Sym) * find_sysv(const char* name) const {
    uint32_t hash = 0;
    for (const char* at = name; *at != '\0'; ++at) {
      hash = (hash << 4) + static_cast<unsigned char>(*at);
      const uint32_t high = hash & 0xf0000000u;
      hash = (hash ^ high >> 24) & ~high;
    }
    if (sysv_hash[0] == 0) return nullptr;
    for (uint32_t i = sysv_hash[2 + hash % sysv_hash[0]]; i != 0; i = sysv_hash[2 + sysv_hash[0] + i]) {
      if (same_text(name_of(symbols[i]), name) && is_definition(i)) return &symbols[i];
    }
    return nullptr;
  }
};

}  // namespace powerccl::names
// NOLINTEND(performance-no-int-to-ptr)
