// SPDX-License-Identifier: Apache-2.0
// What differs between MPI libraries for a program built without mpi.h: the values of handles and special addresses.
// A handle travels as a word. That fits all three ABIs: an int argument is the low half of the word's register, and
// little-endian memory holds its bytes first.
#ifndef POWERCCL_BENCH_MPI_ABI_H
#define POWERCCL_BENCH_MPI_ABI_H
#include <cstddef>
#include <cstdint>

namespace powerccl::bench::mpi {

using Handle = uintptr_t;

enum class AbiKind { kMpich, kOpenMpi, kStandard };

// The handles that this program uses. In Open MPI each is the address of an exported object.
struct Handles {
  Handle world, byte, float32, float64, int64, sum, min, max;
};

struct Abi {
  AbiKind kind;
  const char* name;
  size_t handle_bytes;  // in an array of requests
  Handles handles;
  void* in_place;
  void* ignore_status;  // MPI_STATUS_IGNORE and MPI_STATUSES_IGNORE
  int no_process;       // MPI_PROC_NULL
};

// Handles of Open MPI are zero until the objects of kOpenMpiSymbols are looked up.
const Abi& abi_of(AbiKind kind);

// Name of the object behind each handle of Open MPI.
struct HandleSymbol {
  Handle Handles::* handle;
  const char* symbol;
};
inline constexpr HandleSymbol kOpenMpiSymbols[] = {
    {&Handles::world, "ompi_mpi_comm_world"}, {&Handles::byte, "ompi_mpi_byte"},
    {&Handles::float32, "ompi_mpi_float"},    {&Handles::float64, "ompi_mpi_double"},
    {&Handles::int64, "ompi_mpi_int64_t"},    {&Handles::sum, "ompi_mpi_op_sum"},
    {&Handles::min, "ompi_mpi_op_min"},       {&Handles::max, "ompi_mpi_op_max"},
};

// Which ABI a library speaks. `has_openmpi_objects`: it exports ompi_mpi_comm_world. `abi_major`: what
// MPI_Abi_get_version says, below 1 where the library has no such function or says that it is not the standard's.
AbiKind abi_of_library(bool has_openmpi_objects, int abi_major);

}  // namespace powerccl::bench::mpi
#endif
