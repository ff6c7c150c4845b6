// SPDX-License-Identifier: Apache-2.0
// An MPI library loaded at run time, by a program built without <mpi.h>. It is loaded with global scope, and its
// functions are looked up from the program's. So a preloaded tool's own MPI_Send comes before the library's, as in a
// linked program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/library.h"

namespace powerccl::bench::mpi {

// What started this process, by its environment and its ancestors. It decides before MPI_Init which library to load,
// and shows afterwards whether that was the launcher's.
enum class LauncherKind { kNone, kOpenMpi, kPmi, kPmix };

struct Launcher {
  LauncherKind kind = LauncherKind::kNone;
  int ranks = 1, rank = 0;           // as announced; 1 and 0 without a launcher
  std::vector<std::string> folders;  // where its library may be beside it
  const char* name() const;
};

using Lookup = std::function<const char*(const char*)>;

// `lookup` is getenv, or a test's. Folders are looked for only where `with_ancestors`.
Launcher find_launcher(const Lookup& lookup, bool with_ancestors);

// What to hand to dlopen in turn: `named` alone if it is not empty. Else the launcher's own library from its folders,
// then the loader's under the launcher's names, then all others.
std::vector<std::string> library_candidates(const Launcher& launcher, const std::string& named);

// Empty, or what is wrong when the library counts `size` ranks but the launcher announced others.
std::string size_mismatch(const Launcher& launcher, int size, const std::string& library);

// What differs between MPI libraries: the values of handles and special addresses. A handle travels as a word. That
// fits all three ABIs: an int argument is the low half of the word's register, and little-endian memory holds its bytes
// first.
using Handle = uintptr_t;

enum class AbiKind { kMpich, kOpenMpi, kStandard };

// The handles that this program uses. In Open MPI each is the address of an exported object.
struct Handles {
  Handle world, byte, float32, float64, sum;
};

struct Abi {
  AbiKind kind;
  const char* name;
  size_t handle_bytes;  // in an array of requests
  Handles handles;
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
    {&Handles::world, "ompi_mpi_comm_world"}, {&Handles::byte, "ompi_mpi_byte"},  {&Handles::float32, "ompi_mpi_float"},
    {&Handles::float64, "ompi_mpi_double"},   {&Handles::sum, "ompi_mpi_op_sum"},
};

// Which ABI a library speaks. `has_openmpi_objects`: it exports ompi_mpi_comm_world. `abi_major`: what
// MPI_Abi_get_version says, below 1 where the library has no such function or says that it is not the standard's.
AbiKind abi_of_library(bool has_openmpi_objects, int abi_major);

// Declarations after the MPI standard 4.1, annex A.2, with words for handles.
struct Functions {
  explicit Functions(std::string loaded) : library(std::move(loaded)) {}

  std::string library;
  int (*init)(int*, char***) = find("MPI_Init");
  int (*finalize)() = find("MPI_Finalize");
  int (*comm_rank)(Handle, int*) = find("MPI_Comm_rank");
  int (*comm_size)(Handle, int*) = find("MPI_Comm_size");
  int (*library_version)(char*, int*) = find("MPI_Get_library_version");
  int (*send)(const void*, int, Handle, int, int, Handle) = find("MPI_Send");
  int (*recv)(void*, int, Handle, int, int, Handle, void*) = find("MPI_Recv");
  int (*isend)(const void*, int, Handle, int, int, Handle, void*) = find("MPI_Isend");
  int (*irecv)(void*, int, Handle, int, int, Handle, void*) = find("MPI_Irecv");
  int (*waitall)(int, void*, void*) = find("MPI_Waitall");
  int (*sendrecv)(const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle,
                  void*) = find("MPI_Sendrecv");
  int (*barrier)(Handle) = find("MPI_Barrier");
  int (*bcast)(void*, int, Handle, int, Handle) = find("MPI_Bcast");
  int (*reduce)(const void*, void*, int, Handle, Handle, int, Handle) = find("MPI_Reduce");
  int (*allreduce)(const void*, void*, int, Handle, Handle, Handle) = find("MPI_Allreduce");
  int (*allgather)(const void*, int, Handle, void*, int, Handle, Handle) = find("MPI_Allgather");
  int (*reduce_scatter)(const void*, void*, const int*, Handle, Handle, Handle) = find("MPI_Reduce_scatter");
  int (*alltoall)(const void*, int, Handle, void*, int, Handle, Handle) = find("MPI_Alltoall");
  int (*gather)(const void*, int, Handle, void*, int, Handle, int, Handle) = find("MPI_Gather");
  int (*scatter)(const void*, int, Handle, void*, int, Handle, int, Handle) = find("MPI_Scatter");

 private:
  Symbol find(const char* symbol) const;
};

// MPI requests side by side, of the size that the library's ABI gives them.
class Requests {
 public:
  Requests(const Abi& abi, int count) : bytes_(abi.handle_bytes), memory_(count * sizeof(Handle)) {}
  void* at(int index) { return memory_.data() + index * bytes_; }
  void* data() { return memory_.data(); }

 private:
  size_t bytes_;
  std::vector<char> memory_;
};

class Mpi {
 public:
  // Loads the library and calls MPI_Init. Throws Failure(kExitMissing) with what to do about it.
  Mpi(const Launcher& launcher, const std::string& named, int* argc, char*** argv);
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  const Functions& call() const { return functions_; }
  const Handles& handle() const { return abi_.handles; }
  const Abi& abi() const { return abi_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }
  const std::string& path() const { return functions_.library; }
  const std::string& version() const { return version_; }

  // The value of each rank, on rank 0; empty elsewhere.
  std::vector<double> gather(double value) const;
  double sum(double value) const;
  void barrier() const { functions_.barrier(abi_.handles.world); }

 private:
  Abi abi_{};
  Functions functions_;
  int rank_ = 0, size_ = 1;
  std::string version_;
};

}  // namespace powerccl::bench::mpi
