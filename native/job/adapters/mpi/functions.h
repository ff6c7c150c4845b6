// SPDX-License-Identifier: Apache-2.0
// abi/mpi_functions.def as data: the meaning of each argument of each blocking MPI function.
#pragma once
#include <stdint.h>

namespace powerccl::mpi {

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

}  // namespace powerccl::mpi
