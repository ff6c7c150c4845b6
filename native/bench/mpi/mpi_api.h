// SPDX-License-Identifier: Apache-2.0
// An MPI library loaded at run time. It is loaded where everybody sees it and its functions are looked up from the
// program's scope, so that a preloaded tool's own MPI_Send is found before the library's, as in a linked program.
#ifndef POWERCCL_BENCH_MPI_MPI_API_H
#define POWERCCL_BENCH_MPI_MPI_API_H
#include <string>
#include <vector>

#include "bench/mpi/abi.h"
#include "bench/mpi/launcher.h"

namespace powerccl::bench::mpi {

// Declarations after the MPI standard 4.1, annex A.2, with words for handles.
struct Functions {
  int (*init)(int*, char***);
  int (*finalize)();
  int (*abort)(Handle, int);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*library_version)(char*, int*);
  int (*send)(const void*, int, Handle, int, int, Handle);
  int (*recv)(void*, int, Handle, int, int, Handle, void*);
  int (*isend)(const void*, int, Handle, int, int, Handle, void*);
  int (*irecv)(void*, int, Handle, int, int, Handle, void*);
  int (*waitall)(int, void*, void*);
  int (*sendrecv)(const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle, void*);
  int (*barrier)(Handle);
  int (*bcast)(void*, int, Handle, int, Handle);
  int (*reduce)(const void*, void*, int, Handle, Handle, int, Handle);
  int (*allreduce)(const void*, void*, int, Handle, Handle, Handle);
  int (*allgather)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*reduce_scatter)(const void*, void*, const int*, Handle, Handle, Handle);
  int (*alltoall)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*gather)(const void*, int, Handle, void*, int, Handle, int, Handle);
  int (*scatter)(const void*, int, Handle, void*, int, Handle, int, Handle);
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
  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }

  // The value of each rank, on rank 0; empty elsewhere.
  std::vector<double> gather(double value) const;
  double sum(double value) const;
  void barrier() const { functions_.barrier(abi_.handles.world); }

 private:
  void load(const Launcher& launcher, const std::string& named);

  Functions functions_{};
  Abi abi_{};
  int rank_ = 0, size_ = 1;
  std::string path_, version_;
};

}  // namespace powerccl::bench::mpi
#endif
