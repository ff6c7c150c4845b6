// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/names.h"
#include "base/basics.h"

namespace powerccl::mpi {
namespace {

struct Wanted {
  uintptr_t address;
  CodeRange range;
};

int look_for_code(dl_phdr_info* info, size_t, void* data) {
  Wanted* wanted = static_cast<Wanted*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const uintptr_t from = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 || wanted->address - from >= segment.p_memsz) {
      continue;
    }
    wanted->range = {from, from + segment.p_memsz};
    return 1;
  }
  return 0;
}

CodeRange code_around(const void* function) {
  Wanted wanted{reinterpret_cast<uintptr_t>(function), {}};
  if (function != nullptr) dl_iterate_phdr(look_for_code, &wanted);
  return wanted.range;
}

// An object of the library. A program linked without PIC has its own copy of it, which all libraries then share, so the
// search begins at the program.
Word object(const char* name) {
  return reinterpret_cast<Word>(names::first_definition(name));
}

template <class F>
bool find(F*& function, const char* name) {
  void* symbol = next_symbol(name);
  if (symbol != nullptr) function = reinterpret_cast<F*>(symbol);
  return symbol != nullptr;
}

}  // namespace

void* next_symbol(const char* name) {
  return names::definition_behind(name);
}

void parse_version(const char* text, bool standard_abi, char* name, uint32_t size, int* major, int* minor) {
  *major = *minor = 0;
  struct Known {
    const char* mark;
    const char* name;
  };
  constexpr Known kKnown[] = {{"Open MPI v", "open mpi"},
                              {"Intel(R) MPI Library", "intel mpi"},
                              {"MVAPICH", "mvapich"},
                              {"MPICH Version:", "mpich"}};
  for (const Known& known : kKnown) {
    const char* at = strstr(text, known.mark);
    if (at == nullptr) continue;
    at += strlen(known.mark);
    while (*at != '\0' && (*at < '0' || *at > '9')) ++at;
    char* rest = nullptr;
    *major = static_cast<int>(strtol(at, &rest, 10));
    if (rest != nullptr && *rest == '.') *minor = static_cast<int>(strtol(rest + 1, nullptr, 10));
    int digits = 0;
    while ((at[digits] >= '0' && at[digits] <= '9') || (at[digits] == '.' && digits > 0)) ++digits;
    snprintf(name, size, "%s%s %.*s", known.name, standard_abi ? " abi" : "", digits, at);
    return;
  }
  snprintf(name, size, "unknown mpi");
}

bool world_comes_up(Library* library) {
  int is_up = 0;
  if (library->world_is_up.load(std::memory_order_relaxed)) return false;
  if (library->initialized(&is_up) != 0 || is_up == 0) return false;
  if (library->query_thread(&library->thread_level) != 0) library->thread_level = 0;
  library->world_is_up.store(true, std::memory_order_release);
  return true;
}

bool is_present(const Library& library) {
  return reinterpret_cast<void*>(library.comm_size) == next_symbol("PMPI_Comm_size");
}

void forget(Library* library) {
  library->have_no_functions();
  library->world_is_up.store(false, std::memory_order_release);
  library->hook = Hook::kNone;
  library->code[0] = library->code[1] = {};
}

bool identify(Library* library) {
  forget(library);
  int (*get_version)(char*, int*) = nullptr;
  const bool whole = find(library->comm_size, "PMPI_Comm_size") && find(library->comm_rank, "PMPI_Comm_rank") &&
                     find(library->comm_test_inter, "PMPI_Comm_test_inter") &&
                     find(library->comm_group, "PMPI_Comm_group") &&
                     find(library->group_translate_ranks, "PMPI_Group_translate_ranks") &&
                     find(library->group_free, "PMPI_Group_free") && find(library->type_size, "PMPI_Type_size") &&
                     find(library->initialized, "PMPI_Initialized") &&
                     find(library->query_thread, "PMPI_Query_thread") && find(get_version, "PMPI_Get_library_version");
  if (!whole) {
    forget(library);
    return false;
  }
  // Longer than MPI_MAX_LIBRARY_VERSION_STRING of all that are known (MPICH: 8192).
  static char text[16384];
  int length = 0, major = 0, minor = 0;
  if (get_version(text, &length) != 0) return false;
  text[sizeof(text) - 1] = '\0';

  const Word world = object("ompi_mpi_comm_world");
  Dl_info where{};
  const bool standard_abi = dladdr(reinterpret_cast<void*>(get_version), &where) != 0 && where.dli_fname != nullptr &&
                            strstr(where.dli_fname, "libmpi_abi") != nullptr;
  parse_version(text, standard_abi, library->name, sizeof(library->name), &major, &minor);
  library->open_mpi = library->int_handles = false;
  if (standard_abi) {  // MPI 5.0, chapter 20
    library->comm_null = 0x100;
    library->comm_world = 0x101;
    library->comm_self = 0x102;
    library->in_place = 1;
    library->status_ignore = 0;
    library->proc_null = -3;
    library->errors_return = 0x143;
  } else if (world != 0) {
    library->open_mpi = true;
    library->comm_world = world;
    library->comm_self = object("ompi_mpi_comm_self");
    library->comm_null = object("ompi_mpi_comm_null");
    library->in_place = 1;
    library->status_ignore = 0;
    library->proc_null = -2;
    library->errors_return = object("ompi_mpi_errors_return");
  } else {  // the MPICH ABI: MPICH, Intel MPI, MVAPICH, Cray MPICH
    library->int_handles = true;
    library->comm_null = 0x04000000;
    library->comm_world = 0x44000000;
    library->comm_self = 0x44000001;
    library->in_place = -1;
    library->status_ignore = 1;
    library->proc_null = -1;
    library->errors_return = 0x54000001;
  }
  library->code[0] = code_around(reinterpret_cast<const void*>(library->comm_size));
  library->code[1] = code_around(next_symbol("opal_progress"));
  const bool throttles = strncmp(library->name, "mpich", 5) == 0 && (major > 4 || (major == 4 && minor >= 3));
  if (library->open_mpi || throttles || strncmp(library->name, "intel", 5) == 0) {
    library->hook = Hook::kYield;
  } else if (next_symbol("ucp_worker_progress") != nullptr) {
    library->hook = Hook::kUcx;
  }
  return true;
}

}  // namespace powerccl::mpi
