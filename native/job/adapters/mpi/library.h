// SPDX-License-Identifier: Apache-2.0
// The MPI library of this process: which one it is, its handles, and its functions behind ours.
#pragma once
#include <stdint.h>

#include <atomic>

namespace powerccl::mpi {

// abi/mpi_functions.def as data: the meaning of each argument of each blocking MPI function.
// Every argument and result of the C functions here is a pointer, an integer or a handle. In the calling conventions of
// x86-64 and AArch64 Linux each of them is one word. So one type fits all libraries, whatever their handles are. Of an
// `int` only the low half of its word means anything.
using Word = intptr_t;

// What a pointer argument points at.
template <class T>
inline const T* pointer_to(Word word) {
  return reinterpret_cast<const T*>(word);  // NOLINT(performance-no-int-to-ptr): a pointer is what it was
}

enum class Kind : uint8_t {
  COLLECTIVE,    // over a communicator
  COLLECTIVE_V,  // the count is an array, one for each rank
  NEIGHBOR,
  SEND,
  RECEIVE,
  EXCHANGE,
  PROBE,
  WAIT,
  ONE_SIDED,
  FILE,
  MANAGEMENT,
  COMM_FREE,
  TYPE_FREE,
  INIT,
  FINALIZE,
};

enum Function : uint16_t {
#define POWERCCL_MPI(name, arity, kind, count, type, comm, peer) k##name,
#include "abi/mpi_functions.def"
#undef POWERCCL_MPI
  kFunctions
};

struct Signature {
  const char* name;  // without MPI_
  uint8_t arity;
  Kind kind;
  int8_t count, type, comm, peer;  // -1: none
};

inline constexpr Signature kSignatures[] = {
#define POWERCCL_MPI(name, arity, kind, count, type, comm, peer) {#name, arity, Kind::kind, count, type, comm, peer},
#include "abi/mpi_functions.def"
#undef POWERCCL_MPI
};

// How the library's idle loop reaches us.
enum class Hook : uint8_t {
  kNone,
  kYield,  // sched_yield(), once the library is configured to yield
  kUcx,    // ucp_worker_progress(), which MPICH before 4.3 over UCX calls at every poll
};

// A range of code: a shared library's executable segment.
struct CodeRange {
  uintptr_t from = 0, to = 0;
};

struct Library {
  static constexpr int kNoLibrary = 16;  // an MPI error code of any kind

  char name[32] = "";  // "mpich 5.0.2"
  Hook hook = Hook::kNone;
  bool open_mpi = false;
  Word comm_world = 0, comm_self = 0, comm_null = 0;
  Word in_place = 0, status_ignore = 0, errors_return = 0;
  int proc_null = -1;
  bool int_handles = false;  // a handle is the low half of its word
  int thread_level = 0;
  // Between MPI_Init and MPI_Finalize. A program of sessions alone has no MPI_COMM_WORLD that could be asked.
  std::atomic<bool> world_is_up{false};

  constexpr Library() { have_no_functions(); }
  constexpr void have_no_functions() {
    comm_size = comm_rank = comm_test_inter = type_size = [](Word, int*) { return kNoLibrary; };
    comm_group = [](Word, Word*) { return kNoLibrary; };
    group_translate_ranks = [](Word, int, const int*, Word, int*) { return kNoLibrary; };
    group_free = [](Word*) { return kNoLibrary; };
    initialized = query_thread = [](int*) { return kNoLibrary; };
  }

  // All local: they send nothing. Without a library each answers with an error.
  int (*comm_size)(Word, int*);
  int (*comm_rank)(Word, int*);
  int (*comm_test_inter)(Word, int*);
  int (*comm_group)(Word, Word*);
  int (*group_translate_ranks)(Word, int, const int*, Word, int*);
  int (*group_free)(Word*);
  int (*type_size)(Word, int*);
  int (*initialized)(int*);
  int (*query_thread)(int*);

  CodeRange code[2];  // of the library, and of the one in which Open MPI's progress loop is

  // Whether the library's own code is there, and not the application's.
  bool has_code_at(const void* address) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at - code[0].from < code[0].to - code[0].from || at - code[1].from < code[1].to - code[1].from;
  }
  Word handle(Word word) const { return int_handles ? static_cast<int32_t>(word) : word; }
};

// The next definition of a symbol behind this library: the one the program would have called. Null: there is none.
void* next_symbol(const char* name);

// Fills `library` from what is loaded. Call when MPI has come up. False: its PMPI_ functions are not there.
bool identify(Library* library);

// Whether the library that `identify` found is still the one that calls go to.
bool is_present(const Library& library);

// The library may be unloaded from now on. What is asked of it gets an error for an answer.
void forget(Library* library);

// True: MPI_Init has returned since the last call, so that MPI_COMM_WORLD may be used.
bool world_comes_up(Library* library);

// What MPI_Get_library_version says, as Library::name and the version's numbers. For tests, apart.
void parse_version(const char* text, bool standard_abi, char* name, uint32_t size, int* major, int* minor);

}  // namespace powerccl::mpi
