// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/originals.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "adapters/names.h"

namespace powerccl::nccl {
namespace {

constexpr const char* kDriverNames[] = {"libcuda.so.1", nullptr};
constexpr const char* kRuntimeNames[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", nullptr};

const char* const* names_of(Library library) {
  return library == Library::kDriver ? kDriverNames : kRuntimeNames;
}

struct Object {
  uintptr_t address, begin = 0, end = 0;
};

int look_for_object(dl_phdr_info* info, size_t, void* data) {
  Object* wanted = static_cast<Object*>(data);
  uintptr_t begin = UINTPTR_MAX, end = 0;
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t from = info->dlpi_addr + segment.p_vaddr, to = from + segment.p_memsz;
    if (from < begin) begin = from;
    if (to > end) end = to;
    inside = inside || (wanted->address >= from && wanted->address < to);
  }
  if (!inside) return 0;
  wanted->begin = begin;
  wanted->end = end;
  return 1;
}

bool is_ours(const void* function) {
  Dl_info own_info = {}, its_info = {};
  return dladdr(reinterpret_cast<const void*>(&names_of), &own_info) != 0 && dladdr(function, &its_info) != 0 &&
         own_info.dli_fbase == its_info.dli_fbase;
}

// Whether `address` is in the program itself, which the loader lists first.
bool is_program(const void* address) {
  Object program{reinterpret_cast<uintptr_t>(address)};
  auto look_once = [](dl_phdr_info* info, size_t size, void* data) {
    look_for_object(info, size, data);
    return 1;
  };
  dl_iterate_phdr(look_once, &program);
  return program.end != 0;
}

// In the object that calls and what it is linked with. The library must stay loaded, even if its caller is unloaded.
void* linked_with(const void* caller, const char* name) {
  Dl_info info = {};
  // The program's own scope is the global one, with this library in front.
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr || is_program(caller)) return nullptr;
  void* object = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (object == nullptr) return nullptr;
  void* original = dlsym(object, name);
  if (original == nullptr || is_ours(original) || dladdr(original, &info) == 0 ||
      dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY) == nullptr) {
    original = nullptr;
  }
  dlclose(object);
  return original;
}

}  // namespace

void* find_original(const char* name, Library library) {
  // The job may unload its NCCL.
  if (library == Library::kNccl) return names::definition_behind(name);
  void* original = dlsym(RTLD_NEXT, name);
  if (original != nullptr && !is_ours(original)) return original;
  for (const char* const* each = names_of(library); *each != nullptr; ++each) {
    void* object = dlopen(*each, RTLD_NOLOAD | RTLD_LAZY);
    original = object != nullptr ? dlsym(object, name) : nullptr;
    if (original != nullptr && !is_ours(original)) return original;
  }
  return nullptr;
}

void* Original::look_up() {
  void* original = find_original(name_, library_);
  if (original != nullptr) found_.store(original, std::memory_order_relaxed);
  return original;
}

void* Original::look_up_for(const void* caller) {
  void* original = linked_with(caller, name_);
  if (original == nullptr) original = find_original(name_, library_);
  if (original == nullptr) return nullptr;
  Object object{reinterpret_cast<uintptr_t>(caller)};
  if (dl_iterate_phdr(look_for_object, &object) == 0) return original;
  const uint32_t place = next_caller_.fetch_add(1, std::memory_order_relaxed);
  if (place >= kCallers) return original;  // callers beyond are looked up each time
  callers_[place].function.store(original, std::memory_order_relaxed);
  callers_[place].begin.store(object.begin, std::memory_order_relaxed);
  callers_[place].end.store(object.end, std::memory_order_release);
  return original;
}

}  // namespace powerccl::nccl
